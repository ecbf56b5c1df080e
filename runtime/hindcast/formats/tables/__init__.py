"""Tables of timesteps that others wrote, in Parquet, CSV or JSON."""
