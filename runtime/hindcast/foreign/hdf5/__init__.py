"""Episodes in HDF5: Minari's datasets (and their Arrow form), and D4RL's files."""
