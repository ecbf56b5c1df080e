"""`Job`, a preparation as workers receive it: the parts of the data, the rules and the folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hindcast import formatting
from hindcast.api.input import FilterTerm
from hindcast.datasets.assembly.rules import Rules, refuse_unfinished
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, is_per_observation, root
from hindcast.errors import DataError
from hindcast.formats.columns.steps import read_agent_ids
from hindcast.formats.format import ReadOptions
from hindcast.formats.rows import AGENT_COLUMNS, Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.filters import apply_filter
from hindcast.storage.location import Location

PARTITION_BYTES: Final = 32 << 20
"""Approximate size in memory of a partition, the rows and episodes that become one commit."""
RUN_BYTES: Final = 128 << 20
"""Approximate size in memory of a run, the parts that become one sorted file."""

Progress = Callable[[int, int], None]
"""Called with the amount of work done and the total: parts read and partitions made, on Ray also sorted files."""


@dataclass(frozen=True)
class Part:
    """The part of the data that is read at once: a piece of a foreign file, or a unit of a dataset.

    Attributes:
        path: path of its file.
        nbytes: approximate size in memory.
        options: options for reading.
        read_stored: reads the part in stored order: rows that pass the filter, or complete episodes, not yet filtered.
    """

    path: str
    nbytes: int
    options: ReadOptions
    read_stored: Callable[[], Iterable[Rows | Block]]

    def read(self) -> Iterator[Rows | Block]:
        """Read the part in stored order: rows that pass the filter, or episodes cut to the timesteps that pass.

        Raises:
            DataError: data are damaged.
        """
        for chunk in self.read_stored():
            if isinstance(chunk, Rows):
                yield chunk.squeeze_scalars()
            else:
                yield _select_columns(_filter_steps(chunk, self.options.filter), self.options.columns)


@dataclass(frozen=True)
class Job:
    """The preparation of a dataset.

    Attributes:
        folder: folder of the prepared dataset.
        parts: the parts to read, in stored order.
        rules: the rules by which rows become episodes.
        spec: spaces and environment, as far as they are known; no leaves.
        is_in_order: whether partitions are cut from the stored order, since rows have no ids or the rows of each
            episode seem to be adjacent. Otherwise rows are grouped by their episode's id.
        open_parts: index of a part -> iterator over all its chunks, for a part that this process has begun to read;
            `read` continues with the iterator, and removes it.
        on_read: called with the index of a part before it is read; None on Ray, whose tasks run in other processes.
    """

    folder: Location
    parts: Sequence[Part]
    rules: Rules
    spec: DataSpec
    is_in_order: bool
    open_parts: dict[int, Iterator[Rows | Block]] = field(default_factory=dict)
    on_read: Callable[[int], None] | None = None

    @property
    def nbytes(self) -> int:
        """Approximate size of the data in memory."""
        return sum(part.nbytes for part in self.parts)

    @cached_property
    def num_partitions(self) -> int:
        """Number of partitions."""
        if self.is_in_order:
            return len(self.bounds) - 1
        return max(1, math.ceil(self.nbytes / PARTITION_BYTES))

    @cached_property
    def bounds(self) -> list[int]:
        """Index of the first part of each partition in stored order, followed by the number of parts."""
        return self._divide_parts(PARTITION_BYTES)

    @cached_property
    def run_bounds(self) -> list[int]:
        """Index of the first part of each run (see `sorted_files`), followed by the number of parts."""
        return self._divide_parts(RUN_BYTES)

    def _divide_parts(self, max_bytes: int) -> list[int]:
        """Return the bounds of groups of adjacent parts; a group has at most `max_bytes`, or one larger part."""
        bounds, size = [0], 0
        for part_index, part in enumerate(self.parts):
            if size and size + part.nbytes > max_bytes:
                bounds.append(part_index)
                size = 0
            size += part.nbytes
        return [*bounds, len(self.parts)]

    def read(self, part_index: int) -> Iterator[Rows | Block]:
        """Read the rows and complete episodes of a part, in chunks, skipping empty chunks.

        Raises:
            DataError: data are damaged, only some files have episode ids, or the rules refuse an unfinished episode.
        """
        if self.on_read is not None:
            self.on_read(part_index)
        for chunk in self.open_parts.pop(part_index, None) or self.parts[part_index].read():
            if isinstance(chunk, Block):
                if chunk.num_episodes:
                    refuse_unfinished(chunk, self.rules, self.parts[part_index].path)
                    yield chunk
            elif len(chunk):
                if (chunk.eps_id is not None) != self.rules.is_grouped:
                    raise DataError(
                        f"{chunk.path} {'has no' if self.rules.is_grouped else 'has the'} column 'eps_id', unlike "
                        f"{self.parts[0].path}: give each as a separate input"
                    )
                if self.rules.spec.episodes == "File" and chunk.eps_id is not None:
                    yield replace(chunk, eps_id=f"{chunk.path}:" + chunk.eps_id)
                else:
                    yield chunk

    def describe_files(self) -> str:
        """Return the paths of the files for messages: all, or the first ones with an ellipsis."""
        return formatting.first_few(list(dict.fromkeys(part.path for part in self.parts)), 3) or str(
            self.folder
        )

    def scatter(self, part_indices: Sequence[int]) -> Iterator[tuple[int, Steps | Block]]:
        """Read adjacent parts, and yield pairs: the number of a partition, and rows or complete episodes of it.

        Rows are divided by their ids; the complete episodes of a part all belong to one partition.
        """
        contents = (
            (index, chunk if isinstance(chunk, Block) else Steps.from_rows(chunk, index))
            for index in part_indices
            for chunk in self.read(index)
        )
        # Chunks with the same columns are divided at once, which is faster. Others are only compared when their
        # partition is made.
        for key, group in groupby(contents, lambda pair: isinstance(pair[1], Steps) and pair[1].signature()):
            if key:
                # Without a name for the list, so that its chunks are freed before their rows are copied again.
                chunks = Steps.concat(
                    [chunk for _, chunk in group if isinstance(chunk, Steps)], self.rules.paths
                ).split(self.num_partitions)
                yield from chunks.items()
            else:
                yield from ((index % self.num_partitions, chunk) for index, chunk in group)


def read_first_rows(parts: Sequence[Part]) -> tuple[Rows | None, dict[int, Iterator[Rows | Block]]]:
    """Read the first rows of the data.

    Returns:
        The first rows, None if the data begin with complete episodes; and the opened part, as `Job.open_parts`.

    Raises:
        DataError: data are damaged.
    """
    for part_index, part in enumerate(parts):
        stream = part.read()
        for chunk in stream:
            # `Job.read` continues from here, instead of opening the part again.
            open_parts: dict[int, Iterator[Rows | Block]] = {part_index: chain([chunk], stream)}
            if isinstance(chunk, Rows) and len(chunk):
                return chunk, open_parts
            if isinstance(chunk, Block) and chunk.num_episodes:
                return None, open_parts
    return None, {}


def _filter_steps(block: Block, terms: Sequence[FilterTerm]) -> Block:
    """Filter the timesteps of episodes; adjacent timesteps that pass form fragments, each with a final observation.

    Args:
        block: complete episodes.
        terms: comparisons of columns with one value per timestep, including `eps_id`, `agent_id`, `module_id`, `t`,
            `terminateds` and `truncateds`.

    Raises:
        DataError: a column does not exist, or cannot be compared with the term's value.
    """
    if not terms:
        return block
    table = _make_table(block, {term.column for term in terms})
    _, passing_rows = apply_filter(table, terms, first_row=0)
    episode = block.episode_of_step[passing_rows]
    is_start = np.ones(len(passing_rows), dtype=np.bool_)
    is_start[1:] = (np.diff(passing_rows) != 1) | (np.diff(episode) != 0)
    starts = np.flatnonzero(is_start)
    length = np.diff(np.append(starts, len(passing_rows)))
    episode_of_fragment = episode[starts]
    return block.cut(episode_of_fragment, passing_rows[starts] - block.start[episode_of_fragment], length)


def _select_columns(block: Block, columns: Sequence[str] | None) -> Block:
    """Select the requested columns of a block, and observations, which every episode has."""
    if columns is None:
        return block
    column_names = {Columns.OBS, *columns}
    remaining_columns = {
        name: column for name, column in block.columns.items() if {name, root(name)} & column_names
    }
    return block.with_columns(remaining_columns)


def _make_table(block: Block, compared_columns: Collection[str]) -> pa.Table:
    """Make a table with one row per timestep, of the columns that have one value per timestep.

    The columns `agent_id` and `module_id` are null unless they are among `compared_columns`.
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
    # Ids of agents and modules are in the episodes' details, so they are only looked up if a term compares them.
    for name in AGENT_COLUMNS:
        columns[name] = read_agent_ids(block, name) if name in compared_columns else pa.nulls(block.num_steps)
    return pa.table(columns)
