"""Units, the parts of a dataset that are read at once."""

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
"""Default of the maximum size of a unit in memory."""


class FilePart(NamedTuple):
    """Row groups of one file.

    Attributes:
        path: path of the file.
        row_groups: indices of the row groups.
    """

    path: str
    row_groups: tuple[int, ...]


class EpisodeLocation(NamedTuple):
    """The location of an episode, for messages.

    Attributes:
        path: the file, or the data that the episode was prepared from.
        row: index of its row in the file; None for prepared data.
    """

    path: str
    row: int | None

    def __str__(self) -> str:
        return self.path if self.row is None else f"{self.path}, row {self.row}"


class Unit(NamedTuple):
    """A part of a dataset that is read at once: adjacent row groups, of several files if the files are small.

    Attributes:
        id: index in the dataset.
        parts: row groups of each of its files.
        lengths: `[N]` timesteps of each episode.
        nbytes: approximate size of all columns in memory.
    """

    id: int
    parts: tuple[FilePart, ...]
    lengths: I64
    nbytes: int


def build_units(files: Iterable[IndexedFile], unit_bytes: int = UNIT_BYTES) -> Iterator[Unit]:
    """Yield units of at most `unit_bytes` in memory; a larger row group or episode makes a larger unit.

    Row groups without remaining rows are left out.
    """
    pending_groups: list[tuple[str, int, RowGroup]] = []
    size = unit_id = 0
    for file in files:
        for i, group in enumerate(file.entry.row_groups):
            if group.rows == len(group.dropped):
                continue
            is_continued, nbytes = 0 in group.continued, bytes_in_memory(file.spec, group)
            # A fragment stays in the unit of the previous fragment, so that units have only complete episodes.
            if pending_groups and not is_continued and size + nbytes > unit_bytes:
                yield _make_unit(unit_id, pending_groups, size)
                unit_id, pending_groups, size = unit_id + 1, [], 0
            pending_groups.append((str(file.location), i, group))
            size += nbytes
    if pending_groups:
        yield _make_unit(unit_id, pending_groups, size)


def continued_row_mask(groups: Sequence[RowGroup]) -> NDArray[np.bool_]:
    """Return `[rows]` True for rows of adjacent row groups that continue the previous row; False for the first row."""
    is_continued = _row_mask(groups, [group.continued for group in groups])
    is_continued[:1] = False
    return is_continued


def retained_row_mask(groups: Sequence[RowGroup]) -> NDArray[np.bool_]:
    """Return `[rows]` True for rows of row groups that were not dropped as repeats of other rows."""
    return ~_row_mask(groups, [group.dropped for group in groups])


def _row_mask(groups: Sequence[RowGroup], row_lists: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """Return `[rows]` a mask over the rows of all groups, from a list of row indices for each group."""
    starts = np.cumsum([0, *(group.rows for group in groups)])
    mask = np.zeros(starts[-1], dtype=np.bool_)
    for start, rows in zip(starts[:-1], row_lists, strict=True):
        mask[[start + row for row in rows]] = True
    return mask


def bytes_in_memory(spec: DataSpec, group: RowGroup) -> int:
    """Return the size of a row group's arrays, or of its stored bytes if they are more, as with text."""
    # Other tools may store arrays in fewer bytes than they take in memory, as dictionaries, bits or packed cells.
    # Hindcast does not: for its files this must stay the stored size, since the order of data depends on it.
    return max(group.bytes, spec.array_bytes(group.timesteps, group.rows - len(group.continued)))


def _make_unit(unit_id: int, groups: list[tuple[str, int, RowGroup]], nbytes: int) -> Unit:
    parts = tuple(
        FilePart(path, tuple(i for _, i, _ in file_groups))
        for path, file_groups in groupby(groups, key=itemgetter(0))
    )
    row_groups = [group for _, _, group in groups]
    is_retained = retained_row_mask(row_groups)
    lengths = np.concatenate([np.array(group.lengths, dtype=np.int64) for group in row_groups])[is_retained]
    first_rows = np.flatnonzero(~continued_row_mask(row_groups)[is_retained])
    return Unit(unit_id, parts, np.add.reduceat(lengths, first_rows), nbytes)
