"""The JSON lines of RLlib's old API."""
