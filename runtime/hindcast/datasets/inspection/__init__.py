"""Statistics of data, and problems found in them."""
