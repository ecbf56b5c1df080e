"""Helpers that read a whole table, and make cells as RLlib packs them."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hindcast.api.input import FilterTerm
from hindcast.formats.format import Format, ReadOptions
from hindcast.formats.registry import FORMATS, detect_format
from hindcast.formats.rows import Rows
from hindcast.storage.location import resolve


def find_format(path: Path | str) -> Format:
    """Return the format that recognises a file."""
    file_format = detect_format(resolve(path))
    assert file_format is not None, f"no format recognises {path}"
    return file_format


def read_table(path: Path, format: str | None = None, **options: Any) -> Rows:
    """Read all rows of a file, piece by piece; pieces are pickled, as for workers.

    Args:
        path: the file.
        format: name of the format; by default it is detected.
        **options: fields of `ReadOptions`; `filter` has (column, operator, value) tuples.
    """
    location = resolve(path)
    file_format = find_format(path) if format is None else FORMATS[format]
    options["filter"] = [
        FilterTerm(column=column, op=op, value=value) for column, op, value in options.get("filter", ())
    ]
    read_options = ReadOptions(**options)
    pieces = pickle.loads(pickle.dumps(file_format.list_pieces(location, read_options)))
    parts = [rows for piece in pieces for rows in file_format.read(piece, read_options)]
    return concat_rows(parts)


def concat_rows(parts: list[Any]) -> Rows:
    """Concatenate `Rows`; a column that a part lacks is filled with empty text."""
    assert parts, "there are no rows"
    names = dict.fromkeys(name for part in parts for name in part.columns)

    def concat_column(name: str) -> np.ndarray:
        columns = [part.columns.get(name, np.full(len(part), "", dtype=object)) for part in parts]
        assert len({(array.dtype, array.shape[1:]) for array in columns}) == 1, f"{name} changes"
        return np.concatenate(columns)

    def concat_attribute(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    return Rows(
        columns={name: concat_column(name) for name in names},
        terminated=concat_attribute("terminated"),
        truncated=concat_attribute("truncated"),
        next_missing=concat_attribute("next_missing"),
        path=parts[0].path,
        row=concat_attribute("row"),
        eps_id=concat_attribute("eps_id"),
        t=concat_attribute("t"),
    )


def pack_lz4_cell(value: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> str:
    """Pack a value into a cell as RLlib does, but without the size in the LZ4 frame."""
    data = pickle.dumps(value, protocol)
    return base64.b64encode(pa.Codec("lz4").compress(data, asbytes=True)).decode()


class PickleBomb:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))
