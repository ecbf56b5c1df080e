"""Convert, merge, split, filter and sample datasets; results are read back and compared."""
