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

_SINGLE_AGENT: Final = "SampleBatch"
_MULTI_AGENT: Final = "MultiAgentBatch"
BATCH_TYPES: Final = (_SINGLE_AGENT, _MULTI_AGENT)

Arrays = dict[str, NDArray[Any]]


class Batch(NamedTuple):
    """Timesteps of one policy.

    Attributes:
        policy: id of the policy; None in batches of a single agent.
        columns: column -> value: a list, text (packed), or dicts of such.
    """

    policy: str | None
    columns: dict[str, Any]


def parse_batches(line: bytes) -> list[Batch]:
    """Parse a line into one batch, or one for each policy.

    Raises:
        CellError: the line is not JSON, or not a batch; `row` is 0.
    """
    try:
        document = _parse_json(line)
    except (ValueError, RecursionError) as error:
        raise CellError(0, f"it is not JSON: {error}") from error
    kind = document.pop("type", None) if isinstance(document, dict) else None
    if kind == _SINGLE_AGENT:
        return [Batch(None, document)]
    policies = document.get("policy_batches") if kind == _MULTI_AGENT else None
    if not isinstance(policies, dict) or not all(isinstance(columns, dict) for columns in policies.values()):
        raise CellError(0, f"its type is {kind!r}: expected one of {', '.join(BATCH_TYPES)}")
    return [Batch(policy, columns) for policy, columns in policies.items()]


def _parse_json(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except ValueError:  # RLlib writes NaN, which is not valid JSON
        return json.loads(line)


def decode_column(value: Any, name: str) -> Arrays:
    """Decode a column into leaves, `[T, …]` each; text becomes object arrays of `str`.

    Raises:
        CellError: values differ in shape, are neither numbers nor text, or cannot be unpacked.
    """
    try:
        if isinstance(value, list) and value and type(value[0]) in (bool, int, float):
            return {name: _to_array(value, name)}
        plain = _unpack(value, name)
        if isinstance(plain, list) and plain and isinstance(plain[0], dict):
            plain = batched.stack(plain)
        return {leaf: _to_array(part, leaf) for leaf, part in nested.flatten(plain, name).items()}
    except ValueError as error:
        raise CellError(0, f"{name!r}: {error}") from error


def decode_infos(value: Any) -> NDArray[np.object_]:
    """Decode infos: `[T]` JSON texts."""
    values = _unpack(value, Columns.INFOS)
    if not isinstance(values, list | np.ndarray):
        raise CellError(0, f"its infos are a {type(values).__name__}: expected a list")
    return np.array([encode_info(info, 0) for info in values], dtype=object)


def _unpack(value: Any, name: str) -> Any:
    """Unpack a column that was packed as a whole or row by row; other columns unchanged."""
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
        raise CellError(0, f"{name!r} is a {type(value).__name__}: expected one value for each timestep")
    if isinstance(value, list) and value and isinstance(value[0], str) and set(map(type, value)) == {str}:
        return np.array(value, dtype=object)
    array = np.asarray(value)
    if array.ndim == 0:
        raise CellError(0, f"{name!r} is one number: expected one for each timestep")
    return require_numbers_or_text(array, name)
