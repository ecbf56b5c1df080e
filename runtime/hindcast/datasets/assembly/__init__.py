"""Rows of any kind, put in order and made complete episodes."""
