"""`Target`, a folder that episodes are written to, range by range, and the format of its files."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hindcast.api.quantity import parse_bytes
from hindcast.api.recording import OutputSpec
from hindcast.api.sentences import similar
from hindcast.datasets.assembly.blocks import read_exported_file
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import IndexedFile
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import SpecError
from hindcast.formats.dataset_folder.commits import Commit, describe_exported_files, make_file_stem
from hindcast.formats.entries import FileEntry, count_episodes
from hindcast.formats.layouts import EXPORTED_LAYOUTS, WRITTEN_FORMATS
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location


@dataclass(frozen=True)
class Target:
    """A folder to write episodes to.

    Attributes:
        folder: location of the folder.
        format: one of `WRITTEN_FORMATS`.
        rows_per_file: maximum number of rows in a file, in complete episodes; no limit by default.
        file_bytes: approximate maximum size of a file.
        compression: compression of the files; None for the format's default.
        replace: whether to replace existing data, that is the files that their manifest or commits list.
        compress_columns: columns that SampleBatch packs.

    Raises:
        SpecError: an unknown format, or `compress_columns` for a format that packs no columns.
    """

    folder: Location
    format: str = "Episodes"
    rows_per_file: int | None = None
    file_bytes: int = 128 << 20
    compression: str | None = None
    replace: bool = False
    compress_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.format not in WRITTEN_FORMATS:
            raise SpecError(
                f"the format {self.format!r} cannot be written{similar(self.format, WRITTEN_FORMATS)}; "
                f"allowed are {', '.join(WRITTEN_FORMATS)}"
            )
        if self.compress_columns and self.format != "SampleBatch":
            raise SpecError(
                f"--compress-columns requires the format SampleBatch, and the format is {self.format}: leave it out"
            )

    @property
    def layout(self) -> str:
        """Name of the files' layout."""
        return WRITTEN_FORMATS[self.format]

    @property
    def is_exported(self) -> bool:
        """True if the files are for other tools, and are prepared before they are read."""
        return self.layout in EXPORTED_LAYOUTS

    @property
    def is_text(self) -> bool:
        """True if the files are text rather than Parquet."""
        return self.is_exported and self.format != "Columns"

    @property
    def keeps_details(self) -> bool:
        """True if the files store episode details."""
        return self.format not in ("CSV", "SampleBatch")

    @property
    def has_episode_rows(self) -> bool:
        """True if the files have a row for each episode, rather than for each timestep."""
        return self.format in ("Episodes", "MessagePack", "SampleBatch")

    @classmethod
    def from_output(cls, output: OutputSpec, folder: Location) -> Target:
        """Make the target of a resource's output."""
        return cls(
            folder,
            output.encoding if output.encoding == "MessagePack" else output.format,
            rows_per_file=output.max_rows_per_file,
            file_bytes=parse_bytes(output.max_file_size),
            compression=None if output.is_text else output.compression,
            compress_columns=tuple(output.compress_columns),
        )

    def read_blocks(
        self, spec: DataSpec, files: Sequence[FileEntry], columns: Iterable[str] | None = None
    ) -> Iterator[Block]:
        """Read the episodes of some of the target's files, in order.

        Args:
            spec: spec of the written blocks.
            files: the files to read.
            columns: columns to read, all by default; an exported layout always returns all.

        Raises:
            DataError: a file is damaged.
            StorageError: the storage fails or denies access.
        """
        if self.is_exported:
            yield from (read_exported_file(self.folder.child(file.path), self.layout) for file in files)
            return
        indexed_files = [IndexedFile(self.folder.child(file.path), file, spec, self.layout) for file in files]
        dataset = EpisodeDataset(spec, indexed_files)
        yield from (dataset.read(unit, columns) for unit in dataset.units)

    def write_range(
        self, spec: DataSpec, range_index: int, first_episode: int, blocks: Iterable[Block]
    ) -> Commit:
        """Write the files of a range.

        Args:
            spec: spec of the blocks.
            range_index: index of the range.
            first_episode: index of the range's first episode.
            blocks: the range's episodes, in order.

        Returns:
            The commit; the range becomes part of the dataset when the caller writes it.

        Raises:
            DataError: the format cannot hold the data.
            StorageError: a file cannot be written; all files of the range are then deleted.
        """
        # The stem is unique, so that files of a killed writer of the same range are neither overwritten nor mixed in.
        writer = BlockWriter(
            self.folder,
            spec,
            make_file_stem(range_index, uuid.uuid4().hex[:8]),
            max_rows_per_file=self.rows_per_file,
            max_file_bytes=self.file_bytes,
            compression=self.compression,
            layout=self.layout,
            compress_columns=self.compress_columns,
        )
        with writer:
            for block in blocks:
                writer.write(block)
            files = writer.close()  # leaving the context closes again, which has no effect
        return Commit(
            range=range_index,
            files=files,
            episodes=count_episodes(files),
            timesteps=sum(file.timesteps for file in files),
            first=first_episode,
            exported=describe_exported_files(self.layout, spec),
        )
