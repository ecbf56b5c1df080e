"""Exports as text: JSON lines, CSV, and RLlib's JSON."""
