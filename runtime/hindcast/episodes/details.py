"""What an episode holds in addition to its steps, as JSON text: who acted, when it was played, and the user's own data.

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
"""The text of an episode without details."""
FIELDS: Final = {
    "agent_id": "agent_id",
    "module_id": "module_id",
    "multi_agent_episode_id": "multi_agent_episode_id",
    "_start_time": "start_time",
    "_last_step_time": "last_step_time",
    "custom_data": "custom_data",
}
"""Keys of an episode's state -> the fields of the text."""
_JSON_INTEGERS: Final = range(-(2**63), 2**64)
_STORABLE: Final = "biufcU"


def to_text(**fields: Any) -> str:
    """The fields, of those in `FIELDS`, as text; `None` and empty custom data are left out.

    Raises:
        ValueError: a value other than numbers, text, bytes, arrays, and lists, tuples and dicts of such.
    """
    given = {name: fields[name] for name in FIELDS.values() if _is_given(fields.get(name))}
    if not given:
        return NO_DETAILS
    try:
        return orjson.dumps({name: _plain(value) for name, value in given.items()}).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"text that is not Unicode ({error})") from error


def from_text(text: str) -> dict[str, Any]:
    """The inverse of `to_text`: the fields that are not empty; arrays are read-only.

    Raises:
        ValueError: text that `to_text` did not make.
    """
    if not text:
        return {}
    try:
        return {str(name): _restored(value) for name, value in orjson.loads(text).items()}
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"an object that represents no value: {text[:200]}") from error


def _is_given(value: Any) -> bool:
    return value is not None and not (isinstance(value, Mapping) and not value)


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, str):
        return value
    for kind, form in _PLAIN:
        if isinstance(value, kind):
            return form(value)
    raise ValueError(
        f"a {type(value).__name__}: allowed are numbers, text, bytes, arrays, and lists, tuples and dicts of such"
    )


def _plain_map(value: Mapping[Any, Any]) -> dict[str, Any]:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _plain(part) for key, part in value.items()}
    return {"$map": [[_plain(key), _plain(part)] for key, part in value.items()]}


def _plain_array(value: np.ndarray | np.generic) -> dict[str, Any]:
    if value.dtype.kind not in _STORABLE:
        raise ValueError(f"an array of {value.dtype}: allowed are booleans, numbers and text")
    kind = "$array" if isinstance(value, np.ndarray) else "$scalar"
    return {kind: _text_of(value.tobytes()), "dtype": value.dtype.str, "shape": list(value.shape)}


_PLAIN: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (np.ndarray | np.generic, _plain_array),
    (int, lambda value: value if value in _JSON_INTEGERS else {"$int": str(value)}),
    (float, lambda value: value if math.isfinite(value) else {"$float": repr(value)}),
    (str, str),
    (list, lambda value: [_plain(part) for part in value]),
    (tuple, lambda value: {"$tuple": [_plain(part) for part in value]}),
    (Mapping, _plain_map),
    (bytes, lambda value: {"$bytes": _text_of(value)}),
    (complex, lambda value: {"$complex": repr(value)}),
)


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(part) for part in value]
    if not isinstance(value, dict):
        return value
    restore = _FORMS.get(next(iter(value), ""))
    if restore is None:
        return {key: _restored(part) for key, part in value.items()}
    return restore(value)


def _array(value: Mapping[str, Any], kind: str) -> Any:
    return np.frombuffer(_bytes_of(value[kind]), np.dtype(value["dtype"])).reshape(value["shape"])


_FORMS: Final[dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "$array": lambda value: _array(value, "$array"),
    "$scalar": lambda value: _array(value, "$scalar")[()],
    "$bytes": lambda value: _bytes_of(value["$bytes"]),
    "$complex": lambda value: complex(value["$complex"]),
    "$float": lambda value: float(value["$float"]),
    "$int": lambda value: int(value["$int"]),
    "$map": lambda value: {_restored(key): _restored(part) for key, part in value["$map"]},
    "$tuple": lambda value: tuple(_restored(part) for part in value["$tuple"]),
}


def _text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
