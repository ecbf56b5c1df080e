"""A filter on whole episodes: the rows that are left out cut them into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.api.input import FilterTerm
from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import Columns, per_observation, root
from hindcast.foreign.tables.filters import expression_of, passing


def filtered(block: Block, terms: Sequence[FilterTerm]) -> Block:
    """The timesteps that pass, in pieces of their episodes; each piece has its own final observation.

    Args:
        block: whole episodes.
        terms: comparisons of columns with one value a timestep, `eps_id`, `t`, `terminateds` and `truncateds`
            among them.

    Raises:
        DataError: a column that is not there, or a value of another kind than the column's.
    """
    if not terms:
        return block
    table = _table(block, list(dict.fromkeys(term.column for term in terms)))
    kept = passing(table, expression_of(terms, table.schema), terms, 0)[1]
    episode = block.episode_of_step[kept]
    begins = np.ones(len(kept), dtype=np.bool_)
    begins[1:] = (np.diff(kept) != 1) | (np.diff(episode) != 0)
    starts = np.flatnonzero(begins)
    length = np.diff(np.append(starts, len(kept)))
    head, of = kept[starts], episode[starts]
    is_end = head + length == (block.start + block.length)[of]
    observations = _ranges(block.obs_row[head], length + 1)
    return Block(
        columns={
            name: column[observations if per_observation(name) else kept]
            for name, column in block.columns.items()
        },
        length=length,
        eps_id=block.eps_id[of],
        t_started=block.t_started[of] + head - block.start[of],
        terminated=block.terminated[of] & is_end,
        truncated=block.truncated[of] & is_end,
        details=None if block.details is None else block.details[of],
    )


def selected(block: Block, columns: Sequence[str] | None) -> Block:
    """The block with those of its columns that are to be read, and what every episode has."""
    if columns is None:
        return block
    wanted = {Columns.OBS, *columns}
    kept = {name: column for name, column in block.columns.items() if {name, root(name)} & wanted}
    return block.with_columns(kept)


def _table(block: Block, names: Sequence[str]) -> pa.Table:
    """One row for each timestep, with the columns that have one value in each."""
    columns: dict[str, NDArray[Any]] = {
        Columns.EPS_ID: block.eps_id[block.episode_of_step],
        Columns.T: block.t_started[block.episode_of_step]
        + np.arange(block.num_steps)
        - block.start[block.episode_of_step],
        Columns.TERMINATEDS: block.step_flags(block.terminated),
        Columns.TRUNCATEDS: block.step_flags(block.truncated),
    }
    for name, column in block.columns.items():
        if column.ndim == 1:
            columns[name] = column[block.obs_row] if per_observation(name) else column
    return pa.table(
        {name: pa.array(column) for name, column in columns.items() if name in names or not names}
    )


def _ranges(starts: I64, lengths: I64) -> I64:
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
