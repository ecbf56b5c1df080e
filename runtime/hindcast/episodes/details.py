"""Details, the data of an episode in addition to its steps, as JSON text: agent and module, times, custom data.

Empty fields are left out. A value that JSON cannot represent becomes an object whose first key begins
with `$`: `{"$array": "<base64>", "dtype": "<f4", "shape": [3]}`, `{"$bytes": …}`, `{"$tuple": […]}`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import orjson

NO_DETAILS: Final = ""
"""Text of an episode without details."""
FIELDS: Final = {
    "agent_id": "agent_id",
    "module_id": "module_id",
    "multi_agent_episode_id": "multi_agent_episode_id",
    "_start_time": "start_time",
    "_last_step_time": "last_step_time",
    "custom_data": "custom_data",
}
"""Attribute of an episode (and key of its state) -> field of the text."""
_JSON_INTEGERS: Final = range(-(2**63), 2**64)  # the integers that orjson encodes
_STORABLE_DTYPE_KINDS: Final = "biufcU"


def to_text(**fields: Any) -> str:
    """Encode the fields in `FIELDS` as text; None and empty dicts are left out, and so are other fields.

    Raises:
        ValueError: a value is not a number, text, bytes or an array, nor a list, tuple or dict of these; or text is not
            Unicode. The message is a noun phrase, to which the caller adds the subject.
    """
    filled_fields = {name: fields[name] for name in FIELDS.values() if _has_content(fields.get(name))}
    if not filled_fields:
        return NO_DETAILS
    try:
        return orjson.dumps({name: _to_plain(value) for name, value in filled_fields.items()}).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"text that is not Unicode ({error})") from error


def from_text(text: str) -> dict[str, Any]:
    """Decode the fields that are not empty: the inverse of `to_text`; arrays are read-only.

    Raises:
        ValueError: the text was not made by `to_text`.
    """
    if not text:
        return {}
    try:
        return {str(name): _restore_value(value) for name, value in orjson.loads(text).items()}
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"an object that represents no value: {text[:200]}") from error


def _has_content(value: Any) -> bool:
    return value is not None and not (isinstance(value, Mapping) and not value)


def _to_plain(value: Any) -> Any:
    if value is None or type(value) in (bool, str):
        return value
    for value_type, convert in _CONVERTERS:
        if isinstance(value, value_type):
            return convert(value)
    raise ValueError(
        f"a value of type {type(value).__name__}: allowed are numbers, text, bytes, arrays, and lists, tuples "
        "and dicts of these"
    )


def _map_to_plain(value: Mapping[Any, Any]) -> dict[str, Any]:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _to_plain(item) for key, item in value.items()}
    # keys that are not text, or look like a marker, require a list of pairs
    return {"$map": [[_to_plain(key), _to_plain(item)] for key, item in value.items()]}


def _array_to_plain(value: np.ndarray | np.generic) -> dict[str, Any]:
    if value.dtype.kind not in _STORABLE_DTYPE_KINDS:
        raise ValueError(f"an array of {value.dtype}: allowed are booleans, numbers and text")
    marker = "$array" if isinstance(value, np.ndarray) else "$scalar"
    return {marker: _encode_base64(value.tobytes()), "dtype": value.dtype.str, "shape": list(value.shape)}


_CONVERTERS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    # first, because np.float64 is a float
    (np.ndarray | np.generic, _array_to_plain),
    (int, lambda value: value if value in _JSON_INTEGERS else {"$int": str(value)}),
    (float, lambda value: value if math.isfinite(value) else {"$float": repr(value)}),
    (str, str),
    (list, lambda value: [_to_plain(part) for part in value]),
    (tuple, lambda value: {"$tuple": [_to_plain(part) for part in value]}),
    (Mapping, _map_to_plain),
    (bytes, lambda value: {"$bytes": _encode_base64(value)}),
    (complex, lambda value: {"$complex": repr(value)}),
)


def _restore_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_restore_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    restore = _RESTORERS.get(next(iter(value), ""))
    if restore is None:
        return {key: _restore_value(item) for key, item in value.items()}
    return restore(value)


def _decode_array(value: Mapping[str, Any], marker: str) -> Any:
    return np.frombuffer(_decode_base64(value[marker]), np.dtype(value["dtype"])).reshape(value["shape"])


_RESTORERS: Final[dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "$array": lambda value: _decode_array(value, "$array"),
    "$scalar": lambda value: _decode_array(value, "$scalar")[()],
    "$bytes": lambda value: _decode_base64(value["$bytes"]),
    "$complex": lambda value: complex(value["$complex"]),
    "$float": lambda value: float(value["$float"]),
    "$int": lambda value: int(value["$int"]),
    "$map": lambda value: {_restore_value(key): _restore_value(part) for key, part in value["$map"]},
    "$tuple": lambda value: tuple(_restore_value(part) for part in value["$tuple"]),
}


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
