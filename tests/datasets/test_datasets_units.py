"""Units of an index in columns are those of the row groups, one at a time."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from hindcast.datasets.file_index import IndexedFile
from hindcast.datasets.units import (
    FilePart,
    Unit,
    build_units,
    continued_row_mask,
    count_files,
    episode_lengths,
    retained_row_mask,
    unit_sizes,
)
from hindcast.formats.dataset_folder.index import read_index, write_index
from hindcast.formats.entries import FileEntry, RowGroup, count_episodes
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve

UNIT_BYTES = 100


def build_reference(files: Sequence[IndexedFile]) -> Iterator[Unit]:
    """Build the units one row group at a time."""
    pending: list[tuple[str, int, RowGroup]] = []
    size, ids = 0, itertools.count()
    for file in files:
        for i, group in enumerate(file.entry.row_groups):
            if group.rows == len(group.dropped):
                continue
            episodes = group.rows - len(group.continued)
            nbytes = max(group.bytes, file.spec.array_bytes(group.timesteps, episodes))
            if pending and 0 not in group.continued and size + nbytes > UNIT_BYTES:
                yield make_reference(next(ids), pending, size)
                pending, size = [], 0
            pending.append((str(file.location), i, group))
            size += nbytes
    if pending:
        yield make_reference(next(ids), pending, size)


def make_reference(unit_id: int, groups: list[tuple[str, int, RowGroup]], nbytes: int) -> Unit:
    """Join the rows of a unit."""
    parts = tuple(
        FilePart(path, tuple(i for _, i, _ in file_groups))
        for path, file_groups in itertools.groupby(groups, key=lambda group: group[0])
    )
    row_groups = [group for _, _, group in groups]
    is_retained = retained_row_mask(row_groups)
    lengths = np.concatenate([np.array(group.lengths) for group in row_groups])[is_retained]
    first_rows = np.flatnonzero(~continued_row_mask(row_groups)[is_retained])
    return Unit(unit_id, parts, np.add.reduceat(lengths, first_rows), nbytes)


def make_files(kit, seed: int, share_continued: float, share_dropped: float) -> list[IndexedFile]:
    """Make files of random row groups, some of them empty or dropped, with one spec or another."""
    rng = np.random.default_rng(seed)
    specs = [DataSpec(), kit.spec(kit.block())]
    files = []
    for file_index in range(int(rng.integers(8))):
        groups = []
        for _ in range(int(rng.integers(5))):
            lengths = rng.integers(0, 9, rng.integers(5))
            rows = np.arange(len(lengths))
            is_continued, is_dropped = rng.random((2, len(rows))) < [[share_continued], [share_dropped]]
            groups.append(
                RowGroup(
                    rows=len(rows),
                    timesteps=int(lengths.sum()),
                    bytes=int(rng.integers(60)),
                    lengths=lengths.tolist(),
                    continued=rows[is_continued].tolist(),
                    dropped=rows[is_dropped].tolist(),
                )
            )
        entry = FileEntry.from_row_groups(f"{file_index}.parquet", 9, f"c{file_index}", groups)
        spec = specs[int(rng.random() < 0.3)]
        files.append(IndexedFile(resolve("/d").child(entry.path), entry, spec))
    return files


def to_plain(units: Sequence[Unit]) -> list[tuple[object, ...]]:
    return [
        (unit.id, unit.parts, unit.lengths.dtype.str, unit.lengths.tolist(), unit.nbytes) for unit in units
    ]


@pytest.mark.parametrize("share_dropped", [0, 0.5])
@pytest.mark.parametrize("share_continued", [0, 0.4])
def test_units_in_columns_are_those_of_the_row_groups(kit, memory_path, share_continued, share_dropped):
    for seed in range(12):
        files = make_files(kit, seed, share_continued, share_dropped)
        expected = list(build_reference(files))
        entries = [file.entry for file in files]
        stored_entries = read_index(resolve(memory_path), write_index(resolve(memory_path), entries))
        assert list(stored_entries) == entries
        stored_files = [file._replace(entry=entry) for file, entry in zip(files, stored_entries, strict=True)]
        for indexed_files in (files, stored_files, [*stored_files[:2], *files[2:4], *stored_files[4:]]):
            units = build_units(indexed_files, UNIT_BYTES)
            assert to_plain(units) == to_plain(expected)
            assert to_plain(pickle.loads(pickle.dumps(units))[::2]) == to_plain(expected[::2])
            assert np.array_equal(unit_sizes(units), unit_sizes(expected))
            assert np.array_equal(episode_lengths(units), episode_lengths(expected))
            assert count_files(units) == count_files(expected)
            assert count_episodes(file.entry for file in indexed_files) == sum(e.episodes for e in entries)
