"""The episodes that a recording has written, read back from its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.footers import Indexed
from hindcast.datasets.prepare.reading_back import read_back
from hindcast.episodes.block import Block
from hindcast.formats.entries import FileEntry
from hindcast.record.recorder import Task


def recorded_blocks(
    task: Task, files: Sequence[FileEntry], columns: Iterable[str] | None = None
) -> Iterator[Block]:
    """The episodes of some files, in order.

    Args:
        task: of the recording.
        files: which.
        columns: those that are needed; an exported layout gives them all. All by default.

    Raises:
        DataError: a damaged file.
        StorageError: storage that refuses or fails.
    """
    folder = task.location
    if task.exported is not None:
        yield from (read_back(folder.child(file.path), task.layout) for file in files)
        return
    indexed = [Indexed(folder.child(file.path), file, task.data, task.layout) for file in files]
    dataset = EpisodeDataset(task.data, indexed)
    yield from (dataset.read(unit, columns) for unit in dataset.units)
