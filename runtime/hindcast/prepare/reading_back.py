"""Files that Hindcast wrote for other tools, read back as episodes."""

from __future__ import annotations

from hindcast.api.input import PrepareSpec
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.foreign.format import ReadOptions
from hindcast.foreign.formats import FORMATS
from hindcast.foreign.rows import Rows
from hindcast.prepare.assembling import assemble
from hindcast.prepare.rules import Rules
from hindcast.prepare.steps import Steps
from hindcast.storage.location import Location
from hindcast.store.layouts import format_of_layout


def read_back(location: Location, layout: str) -> Block:
    """All episodes of a file in an exported layout, in its order.

    Raises:
        DataError: it is damaged.
        StorageError: it cannot be read.
    """
    form, options = FORMATS[format_of_layout(layout)], ReadOptions()
    pieces = form.pieces(location, options)
    steps = [
        Steps.of(rows, number)
        for number, piece in enumerate(pieces)
        for rows in form.read(piece, options)
        if isinstance(rows, Rows)
    ]
    paths = [str(location)] * len(pieces)
    block, _ = assemble(Steps.concat(steps, paths), Rules(PrepareSpec(), paths))
    if block is None:
        raise DataError(f"{location} holds no episodes")
    return block
