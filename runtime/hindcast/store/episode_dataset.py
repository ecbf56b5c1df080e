"""Reading units of Parquet files in the layout Episodes / Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import root
from hindcast.errors import DataError
from hindcast.store.arrow_layout import CellError, columns_to_read, decode
from hindcast.store.footers import Indexed, damaged, open_parquet
from hindcast.store.fragments import join
from hindcast.store.manifest import digest_of
from hindcast.store.spec import DataSpec
from hindcast.store.units import UNIT_BYTES, FilePart, Unit, build_units, continued_rows


class EpisodeDataset:
    """A `Dataset` (see there) of files in the layout Episodes / Arrow.

    Args:
        spec: what all files hold.
        files: in the dataset's order.
        unit_bytes: most bytes of a unit.
    """

    def __init__(self, spec: DataSpec, files: Sequence[Indexed], unit_bytes: int = UNIT_BYTES) -> None:
        self.spec = spec
        self.units: Sequence[Unit] = tuple(build_units(files, unit_bytes))
        self.digest = digest_of([file.entry.checksum for file in files])
        self.num_episodes = sum(len(unit.lengths) for unit in self.units)
        self.num_steps = sum(file.entry.timesteps for file in files)
        self.nbytes = sum(unit.nbytes for unit in self.units)
        self._files = {str(file.location): file for file in files}

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """See `Dataset.read`."""
        leaves = self._leaves(columns)
        table = pa.concat_tables([self._read_part(part, leaves) for part in unit.parts])
        try:
            rows = decode(table, self.spec, leaves)
        except CellError as error:
            path, row = self._locate_row(unit, error.row)
            raise DataError(damaged(path, f"row {row}: {error}")) from error
        block = join(rows, self._continued(unit))
        if not np.array_equal(block.length, unit.lengths):
            paths = " or ".join(part.path for part in unit.parts)
            raise DataError(f"{paths} was changed after it was indexed: open the dataset again")
        return block

    def locate(self, unit: Unit, episode: int) -> tuple[str, int]:
        """See `Dataset.locate`."""
        return self._locate_row(unit, int(np.flatnonzero(~self._continued(unit))[episode]))

    def _leaves(self, columns: Iterable[str] | None) -> list[str]:
        if columns is None:
            return list(self.spec.leaves)
        wanted = set(columns)
        unknown = wanted - self.spec.leaves.keys() - {root(leaf) for leaf in self.spec.leaves}
        if unknown:
            raise DataError(
                f"the dataset of {next(iter(self._files))} has no column {', '.join(sorted(unknown))}: "
                f"it has {', '.join(self.spec.leaves)}"
            )
        return [leaf for leaf in self.spec.leaves if leaf in wanted or root(leaf) in wanted]

    def _read_part(self, part: FilePart, leaves: Sequence[str]) -> pa.Table:
        """The part's rows; JSON columns that this file lacks come as empty."""
        names = columns_to_read(leaves)
        with open_parquet(self._files[part.path].location) as file:
            there = set(file.schema_arrow.names)
            absent = [name for name in names if name not in there]
            table = file.read_row_groups(
                list(part.row_groups), columns=[name for name in names if name in there], use_threads=False
            )
        for name in absent:
            if name not in self.spec.leaves or self.spec.leaves[name].kind != "json":
                raise DataError(f"{part.path} has no column {name!r}, which its dataset has")
            empty = pa.array([b""] * len(table), pa.large_binary())
            table = table.append_column(pa.field(name, pa.large_binary(), nullable=False), empty)
        return table.select(names)

    def _continued(self, unit: Unit) -> NDArray[np.bool_]:
        """`[rows]` which stored rows of the unit go on with the row before, in the unit."""
        return continued_rows(
            [self._files[path].entry.row_groups[i] for path, groups in unit.parts for i in groups]
        )

    def _locate_row(self, unit: Unit, row: int) -> tuple[str, int]:
        """File and row in it of a stored row of a unit."""
        for path, groups in unit.parts:
            rows = [group.rows for group in self._files[path].entry.row_groups]
            starts = list(accumulate(rows, initial=0))
            for i in groups:
                if row < rows[i]:
                    return path, starts[i] + row
                row -= rows[i]
        raise IndexError(f"unit {unit.id} has no row {row}")
