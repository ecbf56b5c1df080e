"""Earlier location of `hindcast.cluster`, which operators still start; see `__main__`."""
