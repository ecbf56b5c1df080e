"""Convert, merge, split, filter, sample: written range by range, read back and compared."""
