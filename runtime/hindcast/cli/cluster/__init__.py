"""What the commands read from a cluster."""
