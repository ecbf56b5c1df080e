"""Messages between server and client: the JSON form of values, and the error for an episode that is not running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from hindcast.errors import DataError

_TUPLE_KEY: Final = "tuple"


def to_json_values(value: Any) -> Any:
    """Convert a nested value to JSON's types: an array to nested lists, a tuple to `{"tuple": [...]}`."""
    if isinstance(value, Mapping):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE_KEY: [to_json_values(item) for item in value]}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def from_json_values(value: Any) -> Any:
    """Invert `to_json_values`: `{"tuple": [...]}` becomes a tuple, any other list an array.

    Floats become float32, and whole numbers int64.
    """
    if isinstance(value, Mapping):
        if value.keys() == {_TUPLE_KEY}:
            return tuple(from_json_values(item) for item in value[_TUPLE_KEY])
        return {key: from_json_values(item) for key, item in value.items()}
    if isinstance(value, list):
        array = np.array(value)
        return array.astype(np.float32) if array.dtype.kind == "f" else array
    return value


class UnknownEpisode(DataError):
    """The episode is not running: it was not started, has ended, or was truncated when its writer ended."""


def unknown_episode_error(id_: str) -> UnknownEpisode:
    """Build the error for an episode that is not running."""
    return UnknownEpisode(
        f"episode {id_!r} is not running: it was not started, has ended, or was truncated when its writer was closed "
        "or killed. Start another episode."
    )
