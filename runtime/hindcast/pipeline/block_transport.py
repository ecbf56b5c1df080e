"""Blocks on their way from a data worker: tables of one row, whose cells are the arrays' bytes.

One row cannot be split, and a cell is viewed where it lies: in the object store's shared memory. A user's mistake
travels the same way, as its sentence.
"""

from __future__ import annotations

import pyarrow as pa

from hindcast import errors
from hindcast.episodes.block import Block
from hindcast.formats.arrow.array_row import from_row, header_of, to_row

_COLUMN = "columns/"
_PER_EPISODE = ("length", "eps_id", "t_started", "terminated", "truncated")


def to_table(block: Block) -> pa.Table:
    """The block as one row; its arrays are not copied, text is."""
    arrays = {f"{_COLUMN}{leaf}": column for leaf, column in block.columns.items()}
    return to_row(arrays | {name: getattr(block, name) for name in _PER_EPISODE}, {"logged": block.logged})


def error_table(error: errors.UserError) -> pa.Table:
    """A user's mistake as one row."""
    return to_row({}, {"error": [type(error).__name__, str(error)]})


def from_table(table: pa.Table) -> Block:
    """The block; its arrays are read-only views into the table.

    Raises:
        UserError: the row is a mistake: the one that was made there, of the same class.
    """
    header = header_of(table)
    error = header.get("error")
    if error is not None:
        name, sentence = error
        raise getattr(errors, name, errors.UserCodeError)(sentence)
    arrays = from_row(table)
    per_episode = {name: arrays.pop(name) for name in _PER_EPISODE}
    return Block(
        {name.removeprefix(_COLUMN): array for name, array in arrays.items()},
        **per_episode,
        logged=header["logged"],
    )
