"""Parsing lines of RLlib's JSON writer into batches of columns."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from hindcast.episodes import batched, nested
from hindcast.episodes.columns import Columns
from hindcast.formats.columns.infos import encode_info
from hindcast.formats.columns.packed_cells import is_packed, unpack_cells
from hindcast.formats.layout import CellError, require_numbers_or_text
from hindcast.formats.lossless import MAX_EXACT_FLOAT, describe_rounded, is_float_exact
from hindcast.formats.tables.json_lines import LONG_INTEGER
from hindcast.formatting import describe_type

_SINGLE_AGENT: Final = "SampleBatch"
_MULTI_AGENT: Final = "MultiAgentBatch"
BATCH_TYPES: Final = (_SINGLE_AGENT, _MULTI_AGENT)

Arrays = dict[str, NDArray[Any]]


class Batch(NamedTuple):
    """A batch of timesteps of one policy.

    Attributes:
        policy: id of the policy; None in batches of a single agent.
        columns: column -> values: a list, text (packed values), or dicts of these.
    """

    policy: str | None
    columns: dict[str, Any]


def parse_batches(line: bytes) -> list[Batch]:
    """Parse a line into batches: one batch, or a batch for each policy.

    Raises:
        CellError: the line is not JSON, or not a batch; the error's `row` is 0.
    """
    try:
        document = _parse_json(line)
    except (ValueError, RecursionError) as error:
        raise CellError(0, f"it is not JSON: {error}") from error
    batch_type = document.pop("type", None) if isinstance(document, dict) else None
    if batch_type == _SINGLE_AGENT:
        return [Batch(None, document)]
    policies = document.get("policy_batches") if batch_type == _MULTI_AGENT else None
    if not isinstance(policies, dict) or not all(isinstance(columns, dict) for columns in policies.values()):
        raise CellError(0, f"its type is {batch_type!r}: expected one of {', '.join(BATCH_TYPES)}")
    return [Batch(policy, columns) for policy, columns in policies.items()]


def _parse_json(line: bytes) -> Any:
    try:
        # orjson converts integers beyond 64 bits to floats
        return json.loads(line) if LONG_INTEGER.search(line) else orjson.loads(line)
    except ValueError:  # RLlib writes NaN, which is not valid JSON
        return json.loads(line)


def decode_column(value: Any, name: str) -> Arrays:
    """Decode a column into leaf name -> `[T, …]`; text becomes object arrays of `str`.

    Raises:
        CellError: values differ in shape, are neither numbers nor text, or cannot be unpacked.
    """
    try:
        if isinstance(value, list) and value and type(value[0]) in (bool, int, float):
            return {name: _to_array(value, name)}
        column_values = _unpack(value, name)
        if isinstance(column_values, list) and column_values and isinstance(column_values[0], dict):
            column_values = batched.stack(column_values)
        return {leaf: _to_array(values, leaf) for leaf, values in nested.flatten(column_values, name).items()}
    except ValueError as error:
        raise CellError(0, f"{name!r}: {error}") from error


def decode_infos(value: Any) -> NDArray[np.object_]:
    """Decode the column of infos into `[T]` JSON texts.

    Raises:
        CellError: the column is not a list of dicts.
    """
    values = _unpack(value, Columns.INFOS)
    if not isinstance(values, list | np.ndarray):
        raise CellError(0, f"its infos are {describe_type(values)}: expected a list")
    return np.array([encode_info(info, 0) for info in values], dtype=object)


def _unpack(value: Any, name: str) -> Any:
    """Unpack a column that was packed as a whole or row by row; return other columns unchanged."""
    try:
        if isinstance(value, str):
            (value,) = unpack_cells([value])
            return value
        if isinstance(value, list) and is_packed(value):
            return batched.stack(unpack_cells(value))
    except CellError as error:
        raise CellError(0, f"{name!r}: {error}") from error
    return value


def _to_array(value: Any, name: str) -> NDArray[Any]:
    if not isinstance(value, list | np.ndarray):
        raise CellError(0, f"{name!r} is {describe_type(value)}: expected one value for each timestep")
    if isinstance(value, list) and value and isinstance(value[0], str) and set(map(type, value)) == {str}:
        return np.array(value, dtype=object)
    array = np.asarray(value)
    if array.ndim == 0:
        raise CellError(0, f"{name!r} is one number: expected one for each timestep")
    if isinstance(value, list):
        _refuse_rounded_integers(value, array, name)
    return require_numbers_or_text(array, name)


def _refuse_rounded_integers(values: list[Any], array: NDArray[Any], name: str) -> None:
    """Refuse integers that NumPy rounded, because other numbers of the list are floats or negative."""
    if array.dtype.kind != "f" or not (np.abs(array) >= MAX_EXACT_FLOAT).any():
        return
    numbers = np.array(values, dtype=object).ravel()
    for number, value in zip(numbers, array.ravel(), strict=True):
        if isinstance(number, int) and not is_float_exact(number, value):
            raise CellError(0, describe_rounded(name, number, array.dtype))
