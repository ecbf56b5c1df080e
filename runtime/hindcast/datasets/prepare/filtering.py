"""A filter on complete episodes: rows that are left out cut them into pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hindcast.api.input import FilterTerm
from hindcast.episodes.block import Block, ranges
from hindcast.episodes.columns import Columns, per_observation, root
from hindcast.episodes.details import from_text
from hindcast.formats.tables.filters import passing

_AGENTS: Final = (Columns.AGENT_ID, Columns.MODULE_ID)


def filtered(block: Block, terms: Sequence[FilterTerm]) -> Block:
    """The timesteps that pass, in pieces of their episodes; each piece has its own final observation.

    Args:
        block: complete episodes.
        terms: comparisons of columns with one value a timestep, `eps_id`, `agent_id`, `module_id`, `t`,
            `terminateds` and `truncateds` among them.

    Raises:
        DataError: a column that is not there, or a value of another kind than the column's.
    """
    if not terms:
        return block
    table = _table(block, {term.column for term in terms})
    kept = passing(table, terms, 0)[1]
    episode = block.episode_of_step[kept]
    begins = np.ones(len(kept), dtype=np.bool_)
    begins[1:] = (np.diff(kept) != 1) | (np.diff(episode) != 0)
    starts = np.flatnonzero(begins)
    length = np.diff(np.append(starts, len(kept)))
    head, of = kept[starts], episode[starts]
    is_end = head + length == (block.start + block.length)[of]
    observations = ranges(block.obs_row[head], length + 1)
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


def _table(block: Block, compared: Collection[str]) -> pa.Table:
    """One row for each timestep, with the columns that have one value in each.

    Who acted is looked up only if it is compared: it is in the episodes' details.
    """
    columns: dict[str, Any] = {
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
    for name in _AGENTS:
        columns[name] = _agents(block, name) if name in compared else pa.nulls(block.num_steps)
    return pa.table(columns)


def _agents(block: Block, name: str) -> pa.Array:
    """`[T]` as the details say, text or whole numbers; null if there are none."""
    details = [] if block.details is None else block.details.tolist()
    agents = [from_text(text).get(name) for text in details] or [None] * block.num_episodes
    if any(isinstance(agent, str) for agent in agents):
        agents = [None if agent is None else str(agent) for agent in agents]
    return pa.array(agents).take(pa.array(block.episode_of_step))
