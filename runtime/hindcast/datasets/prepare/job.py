"""A preparation: what is read, by which rules, and where the episodes go. It travels to workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hindcast.api.input import FilterTerm
from hindcast.datasets.assembly.rules import Rules, refuse_unfinished
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, is_per_observation, root
from hindcast.errors import DataError
from hindcast.formats.columns.steps import actor_ids
from hindcast.formats.format import ReadOptions
from hindcast.formats.rows import ACTOR_COLUMNS, Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.filters import apply_filter
from hindcast.storage.location import Location

PARTITION_BYTES: Final = 32 << 20

Progress = Callable[[int, int], None]
"""Called with how many pieces of the work are done, and of how many."""


@dataclass(frozen=True)
class Part:
    """What is read at once: a piece of a foreign file, or a unit of a dataset that can be opened directly.

    Attributes:
        path: its file.
        nbytes: size in memory, about.
        options: how it is read.
        stored: gives rows that pass the filter, and complete episodes before it.
    """

    path: str
    nbytes: int
    options: ReadOptions
    read_stored: Callable[[], Iterable[Rows | Block]]

    def read(self) -> Iterator[Rows | Block]:
        """Timesteps that pass the filter, in stored order, or complete episodes.

        Raises:
            DataError: damaged data.
        """
        for chunk in self.read_stored():
            if isinstance(chunk, Rows):
                yield chunk.squeeze_scalars()
            else:
                yield _select_columns(_filter_steps(chunk, self.options.filter), self.options.columns)


@dataclass(frozen=True)
class Job:
    """A preparation.

    Attributes:
        folder: of the dataset that is made.
        parts: what is read, in stored order.
        rules: how rows become episodes.
        spec: spaces and environment, as far as the data say them; no leaves.
        in_order: the rows of each episode are adjacent, so that partitions are cut from the rows as they are stored.
            Otherwise rows are brought together by their episode's id.
        begun: of a part that this process began to read: what it holds, which `read` gives once.
    """

    folder: Location
    parts: Sequence[Part]
    rules: Rules
    spec: DataSpec
    is_in_order: bool
    open_parts: dict[int, Iterator[Rows | Block]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of the data in memory, about."""
        return sum(part.nbytes for part in self.parts)

    @cached_property
    def num_partitions(self) -> int:
        """How many partitions are made, one after another or side by side."""
        if self.is_in_order:
            return len(self.bounds) - 1
        return max(1, math.ceil(self.nbytes / PARTITION_BYTES))

    @cached_property
    def bounds(self) -> list[int]:
        """Where partitions in stored order begin: first part of each, and the number of parts."""
        bounds, size = [0], 0
        for number, part in enumerate(self.parts):
            if size and size + part.nbytes > PARTITION_BYTES:
                bounds.append(number)
                size = 0
            size += part.nbytes
        return [*bounds, len(self.parts)]

    def read(self, number: int) -> Iterator[Rows | Block]:
        """What a part holds; nothing that is empty."""
        for chunk in self.open_parts.pop(number, None) or self.parts[number].read():
            if isinstance(chunk, Block):
                if chunk.num_episodes:
                    refuse_unfinished(chunk, self.rules, self.parts[number].path)
                    yield chunk
            elif len(chunk):
                if (chunk.eps_id is not None) != self.rules.is_grouped:
                    raise DataError(
                        f"{chunk.path} {'has no' if self.rules.is_grouped else 'has the'} column 'eps_id', unlike "
                        f"{self.parts[0].path}: give each as a separate input"
                    )
                yield chunk

    def scatter(self, number: int) -> Iterator[tuple[int, Steps | Block]]:
        """A part's rows and complete episodes, each with the partition that they go to."""
        for chunk in self.read(number):
            if isinstance(chunk, Block):
                yield number % self.num_partitions, chunk
            else:
                yield from Steps.from_rows(chunk, number).split(self.num_partitions).items()


def read_first_rows(parts: Sequence[Part]) -> tuple[Steps | None, dict[int, Iterator[Rows | Block]]]:
    """The first rows, if they have ids, else None; and what was read for it: see `Job.begun`.

    Raises:
        DataError: damaged data.
    """
    for number, part in enumerate(parts):
        stream = part.read()
        for chunk in stream:
            open_parts: dict[int, Iterator[Rows | Block]] = {number: chain([chunk], stream)}
            if isinstance(chunk, Rows) and len(chunk):
                return None if chunk.eps_id is None else Steps.from_rows(chunk, 0), open_parts
            if isinstance(chunk, Block) and chunk.num_episodes:
                return None, open_parts
    return None, {}


def _filter_steps(block: Block, terms: Sequence[FilterTerm]) -> Block:
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
    table = _make_table(block, {term.column for term in terms})
    passing_rows = apply_filter(table, terms, 0)[1]
    episode = block.episode_of_step[passing_rows]
    is_start = np.ones(len(passing_rows), dtype=np.bool_)
    is_start[1:] = (np.diff(passing_rows) != 1) | (np.diff(episode) != 0)
    starts = np.flatnonzero(is_start)
    length = np.diff(np.append(starts, len(passing_rows)))
    episode_of_piece = episode[starts]
    return block.cut(episode_of_piece, passing_rows[starts] - block.start[episode_of_piece], length)


def _select_columns(block: Block, columns: Sequence[str] | None) -> Block:
    """The block with those of its columns that are to be read, and what every episode has."""
    if columns is None:
        return block
    column_names = {Columns.OBS, *columns}
    selected = {name: column for name, column in block.columns.items() if {name, root(name)} & column_names}
    return block.with_columns(selected)


def _make_table(block: Block, compared_columns: Collection[str]) -> pa.Table:
    """One row for each timestep, with the columns that have one value in each.

    Who acted is looked up only if it is compared: it is in the episodes' details.
    """
    columns: dict[str, Any] = {
        Columns.EPS_ID: block.eps_id[block.episode_of_step],
        Columns.T: block.t,
        Columns.TERMINATEDS: block.step_flags(block.terminated),
        Columns.TRUNCATEDS: block.step_flags(block.truncated),
    }
    for name, column in block.columns.items():
        if column.ndim == 1:
            columns[name] = column[block.obs_row] if is_per_observation(name) else column
    for name in ACTOR_COLUMNS:
        columns[name] = actor_ids(block, name) if name in compared_columns else pa.nulls(block.num_steps)
    return pa.table(columns)
