"""`TableInput`: a table in memory as an entry of `input_`. Importing it does not import pyarrow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

FILE_NAME = "table.parquet"


@dataclass(frozen=True, eq=False)
class TableInput:
    """A table in memory, an entry of `input_`.

    Attributes:
        table: the table.
        kind: the user's object, for messages: "pandas DataFrame".
    """

    table: pa.Table
    kind: str = "table in memory"

    def write(self, folder: str) -> None:
        """Write the table to a folder as one Parquet file."""
        import pyarrow.parquet as pq

        pq.write_table(self.table, Path(folder) / FILE_NAME)

    def __repr__(self) -> str:
        return f"a table in memory ({self.table.num_rows} rows)"
