"""The Python API: configs with RLlib's names, the running algorithm, the Tune trainable."""
