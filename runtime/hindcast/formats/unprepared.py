"""Data that cannot be opened as they are, and may become a dataset once they are prepared."""

from __future__ import annotations

from hindcast.errors import DataError


class NotReadable(DataError):
    """Files in none of the layouts that are opened directly."""
