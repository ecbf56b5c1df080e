"""The foreign formats that there are."""

from __future__ import annotations

from typing import Final

from hindcast.foreign.format import Format
from hindcast.store.filesystem import Location

_ALL: Final[tuple[Format, ...]] = ()
FORMATS: Final = {known.name: known for known in _ALL}


def format_of(location: Location) -> Format | None:
    """The first format that recognises a file; None where none does.

    Raises:
        StorageError: it cannot be read.
    """
    return next((known for known in _ALL if known.recognises(location)), None)
