"""D4RL's files: flat arrays of steps in HDF5."""
