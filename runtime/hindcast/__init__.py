"""Hindcast: offline reinforcement learning from recorded experience."""

__version__ = "0.1.0"
