"""Hindcast's metadata in Parquet files: layout and spec, and the lengths of rows if no column holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.episodes.block import I64, Bool
from hindcast.errors import DataError
from hindcast.formats.entries import RowGroup
from hindcast.formats.spec import DataSpec

METADATA_KEY = b"hindcast"
INDEX_KEY = b"hindcast-index"
FORMAT_VERSION = 1


class Description(NamedTuple):
    """The layout and the spec of a file."""

    layout: str
    spec: DataSpec


def make_description_metadata(layout: str, spec: DataSpec) -> dict[bytes, str]:
    """Return the schema metadata that store a file's layout and spec."""
    return {METADATA_KEY: json.dumps({"layout": layout, "formatVersion": FORMAT_VERSION, **spec.to_json()})}


def read_description(schema: pa.Schema) -> Description | None:
    """Read layout and spec from a file's metadata; None if Hindcast did not write the file.

    Raises:
        DataError: the metadata cannot be read, or have a newer format.
    """
    text = (schema.metadata or {}).get(METADATA_KEY)
    if text is None:
        return None
    try:
        description = json.loads(text)
        version, layout = description["formatVersion"], description.get("layout", "")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the description of the data cannot be read ({type(error).__name__}: {error})"
        ) from error
    if version != FORMAT_VERSION:
        raise DataError(
            f"the format version is {version}, but this Hindcast reads {FORMAT_VERSION}: update Hindcast"
        )
    return Description(layout, DataSpec.from_json(description))


def make_index_metadata(groups: Sequence[RowGroup]) -> dict[bytes, str]:
    """Return the footer metadata that store each row group's lengths, and the rows that continue an episode."""
    index = [{"lengths": group.lengths, "continued": group.continued} for group in groups]
    return {INDEX_KEY: json.dumps(index)}


def read_index(metadata: Mapping[bytes, bytes] | None) -> tuple[list[I64], list[Bool]] | None:
    """Read the index that `make_index_metadata` made, from a file's footer.

    Returns:
        For each row group `[rows]` lengths, and `[rows]` whether a row continues the episode of the row before; None if
        the file has no index.

    Raises:
        DataError: the index cannot be read.
    """
    text = (metadata or {}).get(INDEX_KEY)
    if text is None:
        return None
    try:
        groups = json.loads(text)
        lengths = [np.array(group["lengths"], dtype=np.int64) for group in groups]
        continued = [np.zeros(len(group_lengths), dtype=np.bool_) for group_lengths in lengths]
        for flags, group in zip(continued, groups, strict=True):
            flags[np.array(group["continued"], dtype=np.int64)] = True
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"the index of episodes in its footer cannot be read ({type(error).__name__}: {error})"
        ) from error
    return lengths, continued
