"""The layouts that there are, by name and by what a file's schema says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from hindcast.errors import DataError
from hindcast.formats.arrow.cells import ARROW_EPISODES
from hindcast.formats.arrow.layout import ArrowEpisodes
from hindcast.formats.columns.layout import ColumnsLayout
from hindcast.formats.columns.names import COLUMNS_LAYOUT
from hindcast.formats.layout import Layout, WrittenLayout
from hindcast.formats.messagepack.index import is_messagepack
from hindcast.formats.messagepack.layout import MESSAGEPACK_EPISODES, MessagePackEpisodes
from hindcast.formats.parquet.description import described
from hindcast.formats.text.csv_layout import CsvLayout
from hindcast.formats.text.json_layout import JsonLayout
from hindcast.formats.text.sample_batch import SAMPLE_BATCH_LAYOUT, SampleBatchLayout
from hindcast.formats.unprepared import NotReadable

_OPENED: Final[tuple[Layout, ...]] = (ArrowEpisodes(), MessagePackEpisodes())
_EXPORTED: Final[tuple[WrittenLayout, ...]] = (
    ColumnsLayout(),
    JsonLayout(),
    CsvLayout(),
    SampleBatchLayout(),
)
LAYOUTS: Final = {layout.name: layout for layout in _OPENED}
"""Whole episodes: opened as they are."""
EXPORTED_LAYOUTS: Final = {layout.name: layout for layout in _EXPORTED}
"""Written for other tools; to be trained on they are prepared, like anybody's tables."""
WRITTEN_LAYOUTS: Final[dict[str, WrittenLayout]] = {**LAYOUTS, **EXPORTED_LAYOUTS}
DEFAULT: Final = ARROW_EPISODES


def written_layout(name: str, packed: Sequence[str] = ()) -> WrittenLayout:
    """The layout of a name.

    Args:
        name: one of `WRITTEN_LAYOUTS`.
        packed: columns that it packs, which only SampleBatch can.
    """
    if packed and name == SAMPLE_BATCH_LAYOUT:
        return SampleBatchLayout(packed)
    return WRITTEN_LAYOUTS[name]


def layout_of_schema(schema: pa.Schema) -> str:
    """The name of the layout of a file with this schema.

    Raises:
        NotReadable: no file of episodes.
        DataError: metadata of ours that cannot be read.
    """
    description = described(schema)
    if description is not None:
        if description.layout in EXPORTED_LAYOUTS:
            raise NotReadable(f"it holds {description.layout}, which are prepared before they are read")
        if description.layout not in LAYOUTS:
            raise DataError(
                f"it is written in the layout {description.layout!r}, which this Hindcast does not know: "
                f"it reads {', '.join(LAYOUTS)}"
            )
        return description.layout
    if is_messagepack(schema):
        return MESSAGEPACK_EPISODES
    raise NotReadable(
        f"it is not a file of episodes that Hindcast can read: it has the columns {schema.names}, "
        "without their dtypes and shapes in its metadata"
    )


def format_of_layout(layout: str) -> str:
    """The format by which files of an exported layout are read."""
    return "Parquet" if layout == COLUMNS_LAYOUT else layout


def layout_of_output(form: str, encoding: str) -> str:
    """The layout that `output.format` and `output.encoding` of a resource ask for."""
    if form in EXPORTED_LAYOUTS:
        return form
    if form == "Columns":
        return COLUMNS_LAYOUT
    return MESSAGEPACK_EPISODES if encoding == "MessagePack" else ARROW_EPISODES
