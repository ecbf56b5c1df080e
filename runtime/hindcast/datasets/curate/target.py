"""Where and how data are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hindcast.api.sentences import similar
from hindcast.errors import SpecError
from hindcast.formats.layouts import EXPORTED_LAYOUTS, layout_of_output
from hindcast.storage.location import Location

FORMATS: Final = {
    "Episodes": ("Episodes", "Arrow"),
    "MessagePack": ("Episodes", "MessagePack"),
    "Columns": ("Columns", "Arrow"),
    "JSON": ("JSON", "Arrow"),
    "CSV": ("CSV", "Arrow"),
    "SampleBatch": ("SampleBatch", "Arrow"),
}
"""Name -> `format` and `encoding` of a recording's output."""


@dataclass(frozen=True)
class Target:
    """A folder that is to be filled.

    Attributes:
        folder: where.
        format: one of `FORMATS`.
        rows_per_file: most rows of a file, in complete episodes; no limit by default.
        file_bytes: most bytes of a file, about.
        compression: of the files; None is the format's own default.
        compress_columns: columns that SampleBatch packs.
        replace: whether existing data are replaced: the files that their manifest or commits list.

    Raises:
        SpecError: an unknown format, or `compress_columns` for one that packs no columns.
    """

    folder: Location
    format: str = "Episodes"
    rows_per_file: int | None = None
    file_bytes: int = 128 << 20
    compression: str | None = None
    replace: bool = False
    compress_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise SpecError(
                f"the format {self.format!r} is not written{similar(self.format, FORMATS)}; "
                f"allowed are {', '.join(FORMATS)}"
            )

        if self.compress_columns and self.format != "SampleBatch":
            raise SpecError(
                f"columns are packed in SampleBatch, and the format is {self.format}: leave out --compress-columns"
            )

    @property
    def layout(self) -> str:
        """Name of the files' layout."""
        return layout_of_output(*FORMATS[self.format])

    @property
    def is_exported(self) -> bool:
        """Whether the files are for other tools, and prepared before they are read."""
        return self.layout in EXPORTED_LAYOUTS

    @property
    def is_text(self) -> bool:
        """Whether the files are text rather than Parquet."""
        return self.is_exported and self.format != "Columns"

    @property
    def keeps_details(self) -> bool:
        """Whether the files store episode details."""
        return self.format not in ("CSV", "SampleBatch")

    @property
    def is_row_an_episode(self) -> bool:
        """Whether files have a row for each episode, rather than for each timestep."""
        return self.format in ("Episodes", "MessagePack", "SampleBatch")

    @property
    def how(self) -> dict[str, Any]:
        """What the files depend on in addition to the data."""
        return {
            "format": self.format,
            "rowsPerFile": self.rows_per_file,
            "fileBytes": self.file_bytes,
            "compression": self.compression,
            **({"compressColumns": self.compress_columns} if self.compress_columns else {}),
        }
