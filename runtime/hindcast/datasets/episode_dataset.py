"""Datasets of Parquet files in any layout."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hindcast.datasets.casting import cast_columns
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.episode_table import EpisodeTable
from hindcast.datasets.file_index import IndexedFile
from hindcast.datasets.sources import map_in_threads
from hindcast.datasets.units import (
    UNIT_BYTES,
    EpisodeLocation,
    FilePart,
    Unit,
    build_units,
    continued_row_mask,
    episode_lengths,
    retained_episode_mask,
    retained_row_mask,
)
from hindcast.episodes.block import Block
from hindcast.episodes.columns import root
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.manifest import digest_of
from hindcast.formats.entries import RowGroup
from hindcast.formats.layout import CellError
from hindcast.formats.layouts import LAYOUTS
from hindcast.formats.parquet.fragments import join_fragments
from hindcast.formats.parquet.opening import FooterCache, open_parquet
from hindcast.formats.spec import DataSpec

_CHANGED: Final = "was changed after it was indexed: open the dataset again"


class EpisodeDataset(Dataset):
    """A dataset of Parquet files.

    Args:
        spec: leaves, spaces and environment of all files.
        files: the files, in the dataset's order.
        unit_bytes: maximum size of a unit in memory, see `build_units`.
        notes: see `Dataset`.
        num_repeated: number of stored episodes that are not in the dataset, because they repeat other episodes.

    Attributes:
        stored_bytes: size of the files.
        layouts: names of the files' layouts.
    """

    def __init__(
        self,
        spec: DataSpec,
        files: Sequence[IndexedFile],
        unit_bytes: int = UNIT_BYTES,
        notes: tuple[str, ...] = (),
        num_repeated: int = 0,
    ) -> None:
        self.spec = spec
        self.num_repeated = num_repeated
        self.units: Sequence[Unit] = build_units(files, unit_bytes)
        self.digest = digest_of([file.entry.checksum for file in files])
        self.stored_bytes = sum(file.entry.bytes for file in files)
        self.layouts = tuple(dict.fromkeys(file.layout for file in files))
        self.notes = notes
        self._footers = FooterCache()
        # The dataset is sent to workers, which do not need the files' fragments.
        self._files = {
            str(file.location): file._replace(stored_fragments=()) if file.stored_fragments else file
            for file in files
        }

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """See `Dataset.read`."""
        leaves = self._select_leaves(columns)
        stored_block = Block.concat(self._read_parts(unit.parts, leaves))
        row_groups = self._get_row_groups(unit)
        is_retained = retained_row_mask(row_groups)
        if stored_block.num_episodes != len(is_retained):
            raise self._changed_error(unit)
        if not is_retained.all():
            stored_block = stored_block.take(np.flatnonzero(is_retained))
        block = join_fragments(stored_block, continued_row_mask(row_groups)[is_retained])
        if not np.array_equal(block.length, unit.lengths):
            raise self._changed_error(unit)
        return block

    def locate(self, unit: Unit, episode: int) -> EpisodeLocation:
        """See `Dataset.locate`."""
        row_groups = self._get_row_groups(unit)
        is_first_row = retained_row_mask(row_groups) & ~continued_row_mask(row_groups)
        path, row = self._locate_row(unit.parts, int(np.flatnonzero(is_first_row)[episode]))
        origin = self._files[path].origin
        return EpisodeLocation(origin, None) if origin else EpisodeLocation(path, row)

    def indexed_table(self) -> EpisodeTable | None:
        """See `Dataset.indexed_table`."""
        tables: list[pa.Table] = []
        for index, files in groupby(self._files.values(), attrgetter("episode_index")):
            table = None if index is None else index.read([file.entry.path for file in files])
            if table is None:
                return None
            tables.append(table)
        if not tables:
            return None
        is_retained = retained_episode_mask(file.entry for file in self._files.values())
        rows = pa.concat_tables(tables)
        columns: dict[str, Any] = {
            name: np.array(rows[name].to_pylist(), dtype)[is_retained]
            for name, dtype in zip(rows.column_names, (object, np.bool_, np.bool_, np.float64), strict=True)
        }
        return EpisodeTable(length=episode_lengths(self.units).astype(np.int64), **columns)

    def extract(self, unit: Unit) -> EpisodeDataset:
        """See `Dataset.extract`."""
        files = {}
        for path, row_groups in unit.parts:
            entry = self._files[path].entry
            # The rows of other row groups only tell where a row is in the file.
            groups = tuple(
                group if i in row_groups else group.model_copy(update={"lengths": ()})
                for i, group in enumerate(entry.row_groups)
            )
            entry = entry.model_copy(update={"row_groups": groups})
            files[path] = self._files[path]._replace(entry=entry, episode_index=None)
        part = copy.copy(self)
        part.units, part._files = (unit,), files
        return part

    def unreadable_files(
        self, unit: Unit, columns: Iterable[str] | None = None
    ) -> Iterator[tuple[str, DataError]]:
        """Yield the files of a unit that cannot be read, with the error of each."""
        leaves = self._select_leaves(columns)
        for part in unit.parts:
            try:
                self._read_part(part, leaves)
            except DataError as error:
                yield part.path, error

    def _select_leaves(self, columns: Iterable[str] | None) -> list[str]:
        if columns is None:
            return list(self.spec.leaves)
        column_names = set(columns)
        unknown_columns = column_names - self.spec.leaves.keys() - {root(leaf) for leaf in self.spec.leaves}
        if unknown_columns:
            first_file = next(iter(self._files.values()))
            raise DataError(
                f"the dataset of {first_file.origin or first_file.location} has no column "
                f"{', '.join(sorted(unknown_columns))}: it has {', '.join(self.spec.leaves)}"
            )
        return [leaf for leaf in self.spec.leaves if leaf in column_names or root(leaf) in column_names]

    def _read_parts(self, parts: Sequence[FilePart], leaves: Sequence[str]) -> list[Block]:
        """Read the stored rows of each part."""
        # Files of a store are read in parallel, since most of the time is spent waiting for its answers.
        if len(parts) == 1 or self._files[parts[0].path].location.is_local:
            return [self._read_part(part, leaves) for part in parts]
        return map_in_threads(lambda part: self._read_part(part, leaves), parts)

    def _read_part(self, part: FilePart, leaves: Sequence[str]) -> Block:
        """Read a part's stored rows."""
        indexed_file = self._files[part.path]
        layout = LAYOUTS[indexed_file.layout]
        try:
            entry = indexed_file.entry
            with open_parquet(indexed_file.location, self._footers, entry.bytes, entry.checksum) as file:
                columns = layout.required_columns(file.schema_arrow, self.spec, leaves)
                table = file.read_row_groups(list(part.row_groups), columns=columns, use_threads=False)
                # Files may store narrower numbers than the dataset has.
                stored_spec = replace(self.spec, leaves={**self.spec.leaves, **indexed_file.spec.leaves})
                return cast_columns(layout.decode(table, stored_spec, leaves), self.spec)
        except CellError as error:
            raise error.to_row_error(*self._locate_row([part], error.row)) from error
        except DataError as error:
            # A bucket was not asked for the size, so a rewritten object was read at wrong offsets.
            location = indexed_file.location
            if not location.is_local and location.info().size not in (None, indexed_file.entry.bytes):
                raise DataError(f"{part.path} {_CHANGED}") from error
            error.locate(path=part.path)
            raise

    def _get_row_groups(self, unit: Unit) -> list[RowGroup]:
        return [self._files[path].entry.row_groups[i] for path, groups in unit.parts for i in groups]

    def _changed_error(self, unit: Unit) -> DataError:
        paths = " or ".join(part.path for part in unit.parts)
        return DataError(f"{paths} {_CHANGED}")

    def _locate_row(self, parts: Sequence[FilePart], row: int) -> tuple[str, int]:
        """Return the path of a file and a row in it, given the row's position among all rows of the parts."""
        for part in parts:
            groups = self._files[part.path].entry.row_groups
            for i in part.row_groups:
                if row < groups[i].rows:
                    return part.path, sum(group.rows for group in groups[:i]) + row
                row -= groups[i].rows
        raise IndexError(f"the row is {row} rows past the end of {parts}")
