"""Write blocks to files that appear complete or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hindcast.datasets.episode_table import EpisodeTable
from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.formats.data_file import DataFile, EncodedEpisodes
from hindcast.formats.entries import EpisodeColumns, FileEntry
from hindcast.formats.layouts import DEFAULT_LAYOUT, make_encoder
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location

MIB = 1 << 20


class BlockWriter:
    """A writer of episodes to `<stem>-000.parquet`, `<stem>-001.parquet`, … (or .json, .csv) in a folder.

    Blocks are collected into row groups of complete episodes; a block must not be changed after it is passed. An
    episode that is too long for its layout (64 MiB in most) becomes adjacent fragments, one row group each. As a
    context manager, it closes at the end and aborts on an exception.

    Args:
        folder: the folder; created if it does not exist.
        spec: spec of the blocks.
        stem: beginning of the file names.
        max_rows_per_file: maximum number of rows in a file, in complete episodes; a row is an episode or fragment, or a
            timestep in layouts with one row per timestep. An episode of more rows gets a separate file. No limit by
            default.
        max_file_bytes: maximum size of a file before compression; only a file of one episode may be larger.
        row_group_bytes: size in memory at which a row group is full.
        compression: "lz4" (Parquet's default), "zstd" or "none" (the only one for text).
        layout: name of the layout, one of `LAYOUTS` or `EXPORTED_LAYOUTS`.
        compress_columns: columns that SampleBatch packs; none by default.

    Raises:
        DataError: the layout cannot hold such data.
        SpecError: the layout does not support the compression.
    """

    def __init__(
        self,
        folder: Location,
        spec: DataSpec,
        stem: str,
        *,
        max_rows_per_file: int | None = None,
        max_file_bytes: int = 128 * MIB,
        row_group_bytes: int = 16 * MIB,
        compression: str | None = None,
        layout: str = DEFAULT_LAYOUT,
        compress_columns: Sequence[str] = (),
    ) -> None:
        self._folder, self._stem = folder, stem
        self._encoder = make_encoder(layout, spec, compress_columns)
        self._max_rows = max_rows_per_file
        self._max_bytes = max_file_bytes
        self._group_bytes = row_group_bytes
        self._compression = compression or self._encoder.compressions[0]
        if self._compression not in self._encoder.compressions:
            compressions = ", ".join(self._encoder.compressions)
            raise SpecError(
                f"compression is {compression!r}: allowed are {compressions} in the layout {layout}"
            )
        self._pending: list[EncodedEpisodes] = []
        self._file: DataFile | None = None
        self._entries: list[FileEntry] = []
        self._episodes: list[EpisodeTable] = []  # of the pending rows and of the open file

    def write(self, block: Block) -> None:
        """Add episodes.

        Raises:
            DataError: columns do not fit the spec.
            StorageError: a file cannot be written. After any error, all files of this writer are deleted.
        """
        try:
            self._episodes.append(_make_episode_table(block))
            for sub_block, is_continued in self._encoder.split(block):
                self._add(sub_block, is_continued)
        except BaseException:
            self.abort()
            raise

    def close(self) -> tuple[FileEntry, ...]:
        """Write the pending episodes and finish the last file.

        Returns:
            The files in order; empty if there are no episodes.

        Raises:
            StorageError: as `write`.
        """
        try:
            self._flush(should_flush_all=True)
            self._finish_file()
        except BaseException:
            self.abort()
            raise
        return tuple(self._entries)

    def abort(self) -> None:
        """Delete every file of this writer, finished or not; what was added is lost."""
        self._pending = []
        if self._file is not None:
            self._file.abort()
            self._file = None
        for entry in self._entries:
            self._folder.child(entry.path).delete()
        self._entries = []

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _add(self, block: Block, is_continued: bool) -> None:
        """Add complete episodes, or one fragment; `is_continued` if it continues the previous fragment's episode."""
        if not block.num_episodes:
            return
        group = self._encoder.encode(block)
        # Fragments of an episode must be adjacent, so pending episodes are written before the first fragment.
        if is_continued:
            self._flush(should_flush_all=True)
            self._write_group(group, is_continued=True)
            return
        if self._pending and self._pending[0].table.schema != group.table.schema:
            self._flush(should_flush_all=True)
        self._pending.append(group)
        self._flush(should_flush_all=False)

    def _flush(self, should_flush_all: bool) -> None:
        """Write full row groups of the pending episodes, or all of them."""
        pending_bytes = sum(int(group.nbytes.sum()) for group in self._pending)
        if not self._pending or (not should_flush_all and pending_bytes < self._group_bytes):
            return
        remaining = EncodedEpisodes.concat(self._pending)
        while len(remaining.length):
            count = self._count_episodes_of_next_group(remaining)
            is_last = count == len(remaining.length)
            if is_last and not should_flush_all and remaining.nbytes.sum() < self._group_bytes:
                break
            self._write_group(remaining.slice(0, count), is_continued=False)
            remaining = remaining.slice(count, len(remaining.length))
        self._pending = [remaining] if len(remaining.length) else []

    def _count_episodes_of_next_group(self, pending: EncodedEpisodes) -> int:
        """Return how many of the pending episodes fit into the next row group."""
        room_bytes = self._max_bytes - self._encoder.estimate_overhead_bytes(
            pending.table.schema, num_row_groups=1
        )
        count = _count_fitting(pending.nbytes, min(self._group_bytes, max(1, room_bytes)))
        if self._max_rows is None:
            return count
        room_rows = self._max_rows - (self._file.num_rows if self._file else 0)
        if pending.num_rows[0] > room_rows:  # then the row group begins the next file
            room_rows = self._max_rows
        return min(count, _count_fitting(pending.num_rows, room_rows))

    def _write_group(self, group: EncodedEpisodes, is_continued: bool) -> None:
        if self._file is not None and not is_continued and self._is_full(group):
            self._finish_file()
        if self._file is None:
            name = f"{self._stem}-{len(self._entries):03d}{self._encoder.suffix}"
            self._file = self._encoder.open(self._folder.child(name), group.table.schema, self._compression)
        self._file.write(group, is_continued)

    def _is_full(self, group: EncodedEpisodes) -> bool:
        """Return True if the row group must not be added to the open file."""
        assert self._file is not None
        # If the first episode's rows fit, all do: `_count_episodes_of_next_group` has limited the group.
        if self._max_rows is not None and self._file.num_rows + group.num_rows[0] > self._max_rows:
            return True
        overhead = self._encoder.estimate_overhead_bytes(group.table.schema, self._file.num_row_groups + 1)
        is_too_large = self._file.size + group.table.nbytes + overhead > self._max_bytes
        return is_too_large or not self._file.accepts(group.table.schema)

    def _finish_file(self) -> None:
        if self._file is None:
            return
        entry = self._file.finish()
        self._file = None
        table, count = EpisodeTable.concat(self._episodes, with_returns=True), entry.episodes
        self._episodes = [table.take(slice(count, None))]
        columns = {name: getattr(table, name)[:count].tolist() for name in EpisodeColumns.model_fields}
        self._entries.append(entry.model_copy(update={"episode_columns": EpisodeColumns(**columns)}))


def _make_episode_table(block: Block) -> EpisodeTable:
    """Return the table of a block's episodes; returns are NaN if rewards are not one number per timestep."""
    rewards = block.columns.get(Columns.REWARDS)
    has_returns = rewards is not None and rewards.ndim == 1 and rewards.dtype.kind in "biuf"
    table = EpisodeTable.from_block(block, has_returns)
    return table if has_returns else table._replace(returns=np.full(block.num_episodes, np.nan))


def _count_fitting(sizes: I64, room: int) -> int:
    """Return how many of the first sizes fit into the room together; at least 1."""
    return max(1, int(np.searchsorted(np.cumsum(sizes), room, side="right")))
