"""Folders named `name=value`, as Spark, Hive and pandas write them: a column with one value for all rows below."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from hindcast.storage.location import Location

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def keys_below(base: Location, location: Location) -> dict[str, str | None]:
    """Name -> value (None: null) of the folders between `base` and what lies below it.

    Args:
        base: what the user named.
        location: a file or folder below it, or `base` itself.
    """
    folders = location.path[len(base.path) :].strip("/").split("/")[:-1]
    parts = [folder.partition("=") for folder in folders]
    return {
        unquote(name): None if value == _NULL else unquote(value)
        for name, equals, value in parts
        if name and equals
    }
