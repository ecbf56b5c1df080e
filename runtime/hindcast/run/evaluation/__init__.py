"""Evaluation of a training: in its environment, and on held-out episodes."""
