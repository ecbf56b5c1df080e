"""The first episodes of files of text that were just written: their first lines, as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hindcast.episodes.block import I64
from hindcast.storage.atomic import AtomicFile
from hindcast.storage.location import Location
from hindcast.store.data_file import entry_of
from hindcast.store.entries import FileEntry, RowGroup
from hindcast.store.text.csv_layout import CSV_LAYOUT
from hindcast.store.text.sample_batch import SAMPLE_BATCH_LAYOUT


def shortened(
    folder: Location, files: Sequence[FileEntry], stem: str, layout: str, episodes: int
) -> tuple[FileEntry, ...]:
    """Files with the first episodes only: those that have no others stay, and one is written anew.

    Args:
        folder: where they are.
        files: in order.
        stem: how the new file's name begins.
        layout: theirs.
        episodes: how many to keep, at least one.

    Raises:
        StorageError: one could not be read or written.
    """
    kept: list[FileEntry] = []
    for file in files:
        if episodes == 0:
            break
        is_whole = file.episodes <= episodes
        kept.append(file if is_whole else _first(folder, file, stem, layout, episodes))
        episodes -= kept[-1].episodes
    return tuple(kept)


def _first(folder: Location, file: FileEntry, stem: str, layout: str, episodes: int) -> FileEntry:
    source = folder.child(file.path)
    lengths = file.episode_lengths[:episodes]
    text = source.read_bytes()
    header = 1 if layout == CSV_LAYOUT else 0
    lines = episodes if layout == SAMPLE_BATCH_LAYOUT else sum(lengths)
    end = int(_line_ends(text, layout == CSV_LAYOUT)[header + lines - 1]) + 1
    with AtomicFile(folder.child(f"{stem}-000{_suffix(file.path)}")) as shorter:
        shorter.write(memoryview(text)[:end])
    group = RowGroup(rows=episodes, timesteps=sum(lengths), bytes=end, lengths=lengths)
    return entry_of(shorter.location.name, shorter.size, shorter.checksum, [group])


def _line_ends(text: bytes, is_quoted: bool) -> I64:
    """Where lines end; not within quotes, of which there is an odd number before."""
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    if not is_quoted:
        return ends
    inside = np.bitwise_xor.accumulate(data == ord('"'))
    return ends[~inside[ends]]


def _suffix(path: str) -> str:
    return path[path.rindex(".") :]
