"""HDF5 files other than Minari's: D4RL's flat arrays of steps, and files with a group for each episode."""
