"""Exports as text: JSON lines, CSV, RLlib's JSON."""
