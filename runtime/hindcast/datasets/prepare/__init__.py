"""Data that cannot be opened as they are, made a dataset once, in a cache."""
