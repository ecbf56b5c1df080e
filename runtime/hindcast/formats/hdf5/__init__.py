"""What reading any HDF5 file takes."""
