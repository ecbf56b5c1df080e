"""Recording of a dataset, range by range."""
