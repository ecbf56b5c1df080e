"""Files that group rows in any order by episode, each sorted by the partition that a row belongs to.

Adjacent parts of the data form a run, which is written to one file. A partition is made from its range of every file.
So rows are read, written and read again once, in memory that does not grow with the data.

A file ends with an int64 array: the offset of each partition, and the offset of the array itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from hindcast.datasets.assembly.chunks import decode_chunks, encode_chunks
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.prepare.job import Job
from hindcast.datasets.sources import map_in_threads
from hindcast.episodes.block import Block
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.storage.atomic import AtomicFile
from hindcast.storage.location import Entry

SORTED_FILES: Final = f"{FOLDER}/sorted"
"""The folder of the files, in the folder of the prepared dataset."""
_OFFSET_BYTES: Final = 8


def list_sorted_files(job: Job) -> list[Entry]:
    """List the sorted files that are complete, in the order of their runs."""
    return [entry for entry in job.folder.child(SORTED_FILES).files() if entry.relative_path.isdigit()]


def write_sorted_file(job: Job, run: int) -> None:
    """Read the parts of a run, and write its file, unless an interrupted preparation has written it.

    Raises:
        DataError: data are damaged, or the rules refuse an unfinished episode.
        StorageError: the file cannot be written.
    """
    location = job.folder.child(SORTED_FILES, f"{run:06d}")
    if location.exists():
        return
    chunks: defaultdict[int, list[Steps | Block]] = defaultdict(list)
    for number, chunk in job.scatter(range(job.run_bounds[run], job.run_bounds[run + 1])):
        chunks[number].append(chunk)
    with AtomicFile(location) as file:
        offsets = np.zeros(job.num_partitions + 1, np.int64)
        for number in range(job.num_partitions):
            for data in encode_chunks(chunks.pop(number, [])):
                file.write(data)
            offsets[number + 1] = file.size
        file.write(offsets)


def read_sorted_files(job: Job, numbers: range) -> Iterator[tuple[int, list[Steps | Block]]]:
    """Yield the number and the contents of adjacent partitions, in stored order."""
    entries = list_sorted_files(job)
    if len(entries) != len(job.run_bounds) - 1:
        raise RuntimeError(f"{job.folder} has {len(entries)} sorted files of {len(job.run_bounds) - 1}")

    def read(entry: Entry) -> list[memoryview]:
        first_offset = entry.size - (job.num_partitions + 1 - numbers.start) * _OFFSET_BYTES
        with entry.location.open(entry.size) as file:
            offsets = np.frombuffer(file.read_at((len(numbers) + 1) * _OFFSET_BYTES, first_offset), np.int64)
            data = memoryview(file.read_at(int(offsets[-1] - offsets[0]), int(offsets[0])))
        return [data[start:stop] for start, stop in pairwise((offsets - offsets[0]).tolist())]

    ranges = map_in_threads(read, entries)
    for index, number in enumerate(numbers):
        yield number, [chunk for file_ranges in ranges for chunk in decode_chunks(file_ranges[index])]
