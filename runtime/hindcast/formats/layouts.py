"""All layouts, by name and by the schema of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from hindcast.errors import DataError
from hindcast.formats.arrow.layout import ARROW_EPISODES, ArrowEncoder, ArrowEpisodes
from hindcast.formats.columns.layout import COLUMNS_LAYOUT, ColumnsEncoder
from hindcast.formats.data_file import RowEncoder
from hindcast.formats.layout import Layout
from hindcast.formats.messagepack.layout import (
    MESSAGEPACK_EPISODES,
    MessagePackEncoder,
    MessagePackEpisodes,
    is_messagepack,
)
from hindcast.formats.parquet.description import read_description
from hindcast.formats.parquet.opening import UnknownLayoutError
from hindcast.formats.spec import DataSpec
from hindcast.formats.text.sample_batch import SAMPLE_BATCH_LAYOUT, SampleBatchEncoder
from hindcast.formats.text.step_lines import CSV_LAYOUT, JSON_LAYOUT, CsvEncoder, JsonEncoder

LAYOUTS: Final[dict[str, Layout]] = {
    ARROW_EPISODES: ArrowEpisodes(),
    MESSAGEPACK_EPISODES: MessagePackEpisodes(),
}
"""Name -> layout, for layouts that are opened directly."""
EXPORTED_LAYOUTS: Final = (COLUMNS_LAYOUT, JSON_LAYOUT, CSV_LAYOUT, SAMPLE_BATCH_LAYOUT)
"""Names of the layouts for other tools. Files in them are prepared before training, like other tables."""
_ENCODERS: Final[dict[str, Callable[[DataSpec], RowEncoder]]] = {
    ARROW_EPISODES: ArrowEncoder,
    MESSAGEPACK_EPISODES: MessagePackEncoder,
    COLUMNS_LAYOUT: ColumnsEncoder,
    JSON_LAYOUT: JsonEncoder,
    CSV_LAYOUT: CsvEncoder,
    SAMPLE_BATCH_LAYOUT: SampleBatchEncoder,
}
WRITTEN_FORMATS: Final = {
    "Episodes": ARROW_EPISODES,
    "MessagePack": MESSAGEPACK_EPISODES,
    "Columns": COLUMNS_LAYOUT,
    "JSON": JSON_LAYOUT,
    "CSV": CSV_LAYOUT,
    "SampleBatch": SAMPLE_BATCH_LAYOUT,
}
"""Format of a recording's output -> layout. "MessagePack" is the format Episodes with the encoding MessagePack."""
DEFAULT_LAYOUT: Final = ARROW_EPISODES


def make_encoder(layout: str, spec: DataSpec, packed_columns: Sequence[str] = ()) -> RowEncoder:
    """Return the encoder that writes data of a spec in a layout.

    Args:
        layout: one of `LAYOUTS` or `EXPORTED_LAYOUTS`.
        spec: spec of the data.
        packed_columns: columns to compress; ignored unless the layout is SampleBatch.

    Raises:
        DataError: the layout cannot store data of this spec.
    """
    if packed_columns and layout == SAMPLE_BATCH_LAYOUT:
        return SampleBatchEncoder(spec, packed_columns)
    return _ENCODERS[layout](spec)


def detect_layout(schema: pa.Schema) -> str:
    """Return the name of the layout of a file with this schema.

    Raises:
        UnknownLayoutError: the file has none of the layouts that are opened directly.
        DataError: Hindcast's metadata cannot be read, or name an unknown layout.
    """
    description = read_description(schema)
    if description is not None:
        if description.layout in EXPORTED_LAYOUTS:
            raise UnknownLayoutError(
                f"it holds {description.layout}, which Hindcast must prepare before it reads them"
            )
        if description.layout not in LAYOUTS:
            raise DataError(
                f"it is written in the layout {description.layout!r}, but this Hindcast opens {', '.join(LAYOUTS)}: "
                "update Hindcast"
            )
        return description.layout
    if is_messagepack(schema):
        return MESSAGEPACK_EPISODES
    raise UnknownLayoutError(
        "it is not a file of episodes that Hindcast can read: its metadata do not describe the dtypes and "
        f"shapes of its columns {schema.names}"
    )
