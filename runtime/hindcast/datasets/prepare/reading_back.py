"""Files that Hindcast wrote for other tools, read back as episodes."""

from __future__ import annotations

from hindcast.api.input import PrepareSpec
from hindcast.datasets.assembly.blocks import assemble
from hindcast.datasets.assembly.rules import Rules
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.layouts import format_of_layout
from hindcast.formats.registry import FORMATS
from hindcast.formats.rows import Rows
from hindcast.storage.location import Location


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
