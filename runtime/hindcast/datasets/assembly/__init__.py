"""Order rows of any kind and assemble them into complete episodes."""
