"""Splitting a dataset's files into units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.datasets.file_index import IndexedFile
from hindcast.episodes.block import I64
from hindcast.formats.entries import RowGroup
from hindcast.formats.spec import DataSpec

UNIT_BYTES = 16 << 20


class FilePart(NamedTuple):
    """Row groups of one file."""

    path: str
    row_groups: tuple[int, ...]


class EpisodeLocation(NamedTuple):
    """Where an episode is, for messages: a file and its row, or the data that it was prepared from."""

    path: str
    row: int | None

    def __str__(self) -> str:
        return self.path if self.row is None else f"{self.path}, row {self.row}"


class Unit(NamedTuple):
    """What is read at once: adjacent row groups, of several files if files are small.

    Attributes:
        id: position in the dataset.
        parts: where it is.
        lengths: `[N]` steps of each episode.
        nbytes: size in memory, of all columns.
    """

    id: int
    parts: tuple[FilePart, ...]
    lengths: I64
    nbytes: int


def build_units(files: Iterable[IndexedFile], unit_bytes: int = UNIT_BYTES) -> Iterator[Unit]:
    """Units of at most `unit_bytes` in memory; only a row group or an episode that is larger makes a larger one."""
    pending_groups: list[tuple[str, int, RowGroup]] = []
    size = count = 0
    for file in files:
        for i, group in enumerate(file.entry.row_groups):
            if group.rows == len(group.dropped):
                continue
            continues, nbytes = 0 in group.continued, bytes_in_memory(file.spec, group)
            if pending_groups and not continues and size + nbytes > unit_bytes:
                yield _make_unit(count, pending_groups, size)
                count, pending_groups, size = count + 1, [], 0
            pending_groups.append((str(file.location), i, group))
            size += nbytes
    if pending_groups:
        yield _make_unit(count, pending_groups, size)


def continued_rows(groups: Sequence[RowGroup]) -> NDArray[np.bool_]:
    """`[rows]` which rows of adjacent row groups continue the row before; never the first of all."""
    is_continued = _row_mask(groups, [group.continued for group in groups])
    is_continued[:1] = False
    return is_continued


def counted_rows(groups: Sequence[RowGroup]) -> NDArray[np.bool_]:
    """`[rows]` which rows of row groups count, because they do not repeat others."""
    return ~_row_mask(groups, [group.dropped for group in groups])


def _row_mask(groups: Sequence[RowGroup], row_lists: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """`[rows]` which rows of all groups are marked in their own."""
    starts = np.cumsum([0, *(group.rows for group in groups)])
    mask = np.zeros(starts[-1], dtype=np.bool_)
    for start, rows in zip(starts[:-1], row_lists, strict=True):
        mask[[start + row for row in rows]] = True
    return mask


def bytes_in_memory(spec: DataSpec, group: RowGroup) -> int:
    """What the arrays of a row group take, or what is stored where that is more: text, and what is stored twice.

    Dictionaries, bits and packed cells make less of arrays than they take. In files that Hindcast wrote they do not,
    and their sizes stay those that orders were made from before.
    """
    return max(group.bytes, spec.array_bytes(group.timesteps, group.rows - len(group.continued)))


def _make_unit(number: int, groups: list[tuple[str, int, RowGroup]], nbytes: int) -> Unit:
    parts = tuple(
        FilePart(path, tuple(i for _, i, _ in own)) for path, own in groupby(groups, key=itemgetter(0))
    )
    rows = [group for _, _, group in groups]
    is_counted = counted_rows(rows)
    lengths = np.concatenate([np.array(group.lengths, dtype=np.int64) for group in rows])[is_counted]
    heads = np.flatnonzero(~continued_rows(rows)[is_counted])
    return Unit(number, parts, np.add.reduceat(lengths, heads), nbytes)
