"""Casts of a block's numbers to the dtypes of a dataset, which lose no digit."""

from __future__ import annotations

import numpy as np

from hindcast.episodes.block import Block
from hindcast.episodes.columns import is_per_observation
from hindcast.errors import DataError
from hindcast.formats.lossless import describe_rounded, find_rounded_row
from hindcast.formats.spec import DataSpec


def cast_columns(block: Block, spec: DataSpec) -> Block:
    """Return a block with its numbers in the dtypes of a spec, and without columns that the spec lacks.

    Raises:
        DataError: a dtype would round an integer; the error names its episode and step.
    """
    for name, column in block.columns.items():
        dtype = spec.leaves[name].dtype if name in spec.leaves else None
        if dtype is not None and (row := find_rounded_row(column, dtype)) is not None:
            starts = block.obs_start if is_per_observation(name) else block.start
            episode = int(np.searchsorted(starts, row, side="right")) - 1
            text = describe_rounded(name, column[row], dtype)
            raise DataError(f"episode {block.eps_id[episode]}, step {row - int(starts[episode])}: {text}")
    columns = {
        name: column
        if column.dtype == object
        else column.reshape(len(column), *spec.leaves[name].shape).astype(spec.leaves[name].dtype, copy=False)
        for name, column in block.columns.items()
        if name in spec.leaves
    }
    return block.with_columns(columns)
