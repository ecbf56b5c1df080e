"""Minari's datasets, read with the package `minari`."""
