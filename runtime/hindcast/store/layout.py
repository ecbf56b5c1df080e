"""What a layout is: how episodes become rows of a Parquet file, and rows become episodes again.

Layouts know nothing of files, commits or manifests; `layouts` finds one by its name or by a file's schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.episodes.block import I64, Block, Bool
from hindcast.store.entries import Run
from hindcast.store.spec import DataSpec


class CellError(Exception):
    """A cell does not hold what it should; `row` counts Parquet rows from the start of what was decoded."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class Contents(NamedTuple):
    """What is in a file, found without decoding more of it than its layout needs.

    Attributes:
        spec: what it holds.
        lengths: for each row group, `[rows]` steps of each stored episode or fragment.
        continued: for each row group, `[rows]` which of them go on with the one before.
        runs: of files that Hindcast did not write, what each stored episode is, in order.
    """

    spec: DataSpec
    lengths: list[I64]
    continued: list[Bool]
    runs: tuple[Run, ...] = ()


class Encoder(Protocol):
    """Makes tables of blocks that fit one spec.

    Attributes:
        longest: bytes; an episode of more is given in fragments.
        has_index: whether the lengths stand in the file's footer, because no column has them.
    """

    longest: int
    has_index: bool

    def encode(self, block: Block) -> pa.Table:
        """The block's episodes as rows.

        Raises:
            DataError: a column that the spec does not have, lacks, or has with another dtype or shape.
        """
        ...

    def sizes(self, block: Block) -> I64:
        """`[N]` bytes that each episode takes before compression, about."""
        ...

    def options(self, schema: pa.Schema) -> dict[str, Any]:
        """Arguments of `pq.ParquetWriter`."""
        ...


class Layout(Protocol):
    """One way to store episodes.

    Attributes:
        name: stands in manifests and in the files' metadata.
    """

    name: str

    def encoder(self, spec: DataSpec) -> Encoder:
        """What writes data of this spec."""
        ...

    def rows(self, length: I64) -> I64:
        """`[N]` Parquet rows that episodes of these lengths take."""
        ...

    def contents(self, file: pq.ParquetFile) -> Contents:
        """Look into a file.

        Raises:
            DataError: metadata that cannot be read, or a newer format.
            CellError: what stands in a row.
        """
        ...

    def columns(self, schema: pa.Schema, spec: DataSpec, leaves: Sequence[str]) -> list[str]:
        """The Parquet columns of a file that decoding these leaves takes.

        Raises:
            DataError: one that the file lacks, and may not lack.
        """
        ...

    def decode(self, table: pa.Table, lengths: I64, spec: DataSpec, leaves: Sequence[str]) -> Block:
        """The rows as stored episodes and fragments.

        Args:
            table: whole row groups, with the file's `columns`.
            lengths: of the stored episodes in them.
            spec: what the leaves hold.
            leaves: which to decode.

        Raises:
            CellError: what stands in a row is not what the spec says.
        """
        ...
