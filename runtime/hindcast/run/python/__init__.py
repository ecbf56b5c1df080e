"""The Python API: the builder with the reference's names, the running algorithm, the Tune trainable."""
