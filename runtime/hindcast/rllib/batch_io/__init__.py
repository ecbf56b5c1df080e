"""The classes that RLlib's documentation of 2019 uses to read and write batches."""
