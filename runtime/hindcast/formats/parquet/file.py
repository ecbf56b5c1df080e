"""Writing Parquet files that appear complete or not at all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.episodes.block import I64, Block
from hindcast.formats.data_file import DataFile, EncodedEpisodes, RowEncoder
from hindcast.formats.entries import FileEntry
from hindcast.formats.parquet.description import make_index_metadata
from hindcast.formats.parquet.fragments import split_long_episodes
from hindcast.storage.atomic import AtomicFile
from hindcast.storage.location import Location

_COLUMN_OVERHEAD_BYTES = 256  # estimate of the metadata of a column in one row group


class ParquetEncoder(RowEncoder):
    """Base of the encoders of all Parquet layouts.

    Attributes:
        max_episode_bytes: size above which an episode is split into fragments.
        has_index: whether the file's footer stores the lengths of rows; required if no column does.
    """

    suffix = ".parquet"
    compressions = ("lz4", "zstd", "none")
    max_episode_bytes = 64 << 20
    has_index = False

    @abstractmethod
    def estimate_bytes(self, block: Block) -> I64:
        """Estimate the size of each episode in bytes, before compression: `[N]`."""

    @abstractmethod
    def writer_options(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the layout's keyword arguments for `pq.ParquetWriter`."""

    def split(self, block: Block) -> Iterator[tuple[Block, bool]]:
        """See `RowEncoder.split`."""
        return split_long_episodes(block, self.estimate_bytes(block), self.max_episode_bytes)

    def open(self, location: Location, schema: pa.Schema, compression: str) -> ParquetFile:
        """See `RowEncoder.open`."""
        return ParquetFile(location, schema, self, compression)

    def estimate_overhead_bytes(self, schema: pa.Schema, num_row_groups: int) -> int:
        """See `RowEncoder.estimate_overhead_bytes`: the schema, and the metadata of each column."""
        return 3 * schema.serialize().size + num_row_groups * len(schema) * _COLUMN_OVERHEAD_BYTES


class ParquetFile(DataFile):
    """A file of any Parquet layout."""

    def __init__(
        self, location: Location, schema: pa.Schema, encoder: ParquetEncoder, compression: str
    ) -> None:
        super().__init__(location, schema)
        self._has_index = encoder.has_index
        self._sink = _Sink(self._file)
        self._metadata: list[pq.FileMetaData] = []
        try:
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                schema,
                compression=compression,
                write_page_checksum=True,  # makes a flipped bit an error
                metadata_collector=self._metadata,
                **encoder.writer_options(schema),
            )
        except BaseException:  # the writer begins the file immediately, which fails on a full disk
            self._sink.is_alive = False
            self._file.abort()
            raise

    def finish(self) -> FileEntry:
        """See `DataFile.finish`."""
        if self._has_index:
            self._writer.add_key_value_metadata(make_index_metadata(self._groups))
        self._writer.close()
        # replaces the estimated sizes by those that Parquet measured
        self._groups = [
            group.model_copy(update={"bytes": self._metadata[0].row_group(i).total_byte_size})
            for i, group in enumerate(self._groups)
        ]
        return super().finish()

    def abort(self) -> None:
        """See `DataFile.abort`."""
        self._sink.is_alive = False
        with suppress(Exception):  # after a failed write, closing fails as well
            self._writer.close()
        super().abort()

    def _write_rows(self, group: EncodedEpisodes) -> None:
        # concatenation with an empty table adds the columns that the group lacks, as nulls
        empty_table = pa.Table.from_batches([], self._schema)
        table = pa.concat_tables([empty_table, group.table], promote_options="default").combine_chunks()
        self._writer.write_table(table, row_group_size=len(table))


class _Sink:
    """The file object that the Parquet writer writes to; it discards writes if `is_alive` is False.

    The Parquet writer closes itself when it is garbage-collected, and then writes a footer, even after `abort`.
    """

    closed = False  # read by pa.PythonFile

    def __init__(self, file: AtomicFile) -> None:
        self.file = file
        self.is_alive = True

    def write(self, data: Any) -> int:
        # the writer expects the number of bytes even of discarded data
        return self.file.write(data) if self.is_alive else len(data)

    def flush(self) -> None:
        """Do nothing: no data are buffered here."""

    def close(self) -> None:
        """Do nothing: `AtomicFile.commit` finishes the file."""
