"""Episodes in HDF5: D4RL's files, and what reading any HDF5 file takes."""
