"""The version, apart from the public names, so that a room can say it without importing those."""

__version__ = "0.1.0"
