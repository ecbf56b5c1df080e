"""Layouts of exported text: JSON lines, CSV, and RLlib's JSON."""
