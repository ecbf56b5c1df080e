"""Episodes, their columnar form `Block`, and the spaces of their values."""
