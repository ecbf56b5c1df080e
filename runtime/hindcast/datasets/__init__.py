"""Open, prepare, inspect and convert datasets."""
