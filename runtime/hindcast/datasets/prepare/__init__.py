"""Prepare data that cannot be opened directly: make a dataset of them once, in a cache."""
