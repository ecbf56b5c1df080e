"""Gymnasium spaces as JSON (the form used in resources, manifests and checkpoints), and their leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.episodes.columns import SEPARATOR
from hindcast.errors import DataError

Json = dict[str, Any]


def space_to_json(space: gym.Space) -> Json:
    """The space as JSON: `{"type": "Box", "low": …, "high": …, "shape": …, "dtype": …}` and so on.

    Bounds that are the same everywhere become one number; infinities become "-inf" and "inf".

    Raises:
        DataError: a kind of space that cannot be recorded (Graph, Sequence, OneOf, your own).
    """
    for kind, (write, _) in _CODECS.items():
        if type(space) is kind:
            return {"type": kind.__name__, **write(space)}
    raise DataError(
        f"the space {space} is of the kind {type(space).__name__}, which cannot be recorded: {_allowed()}"
    )


def space_from_json(data: Json) -> gym.Space:
    """The inverse of `space_to_json`; lists and numbers are both taken for bounds.

    Raises:
        DataError: an unknown type, or a field that is missing or wrong.
    """
    for kind, (_, read) in _CODECS.items():
        if data.get("type") == kind.__name__:
            try:
                return read(data)
            except (KeyError, TypeError, ValueError, AssertionError) as error:
                raise DataError(f"the {kind.__name__} space {data} cannot be read: {error!r}") from error
    raise DataError(f"a space has the type {data.get('type')!r}: {_allowed()}")


def flatten_space(space: gym.Space, root: str) -> dict[str, gym.Space]:
    """The leaf spaces by leaf name: `obs/camera`, `actions/0`; a space without parts is the leaf `root`.

    Dict keys come in the space's own order (Gymnasium sorts them), Tuple parts by index.

    Raises:
        DataError: two keys that make the same leaf name.
    """
    leaves: dict[str, gym.Space] = {}
    for key, part in _parts(space):
        for name, leaf in flatten_space(part, f"{root}{SEPARATOR}{key}").items():
            if name in leaves:
                raise DataError(f"two parts of the space {space} share the leaf name {name!r}: rename one")
            leaves[name] = leaf
    return leaves if isinstance(space, spaces.Dict | spaces.Tuple) else {root: space}


def flatten_value(value: Any, root: str) -> dict[str, Any]:
    """The leaves of one sample, or of a batch of samples, by leaf name: dicts by key, tuples by index."""
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, tuple):
        parts = list(enumerate(value))
    else:
        return {root: value}
    leaves: dict[str, Any] = {}
    for key, part in parts:
        leaves.update(flatten_value(part, f"{root}{SEPARATOR}{key}"))
    return leaves


def unflatten(leaves: Mapping[str, Any], space: gym.Space, root: str) -> Any:
    """The value (a sample or a batch) that `flatten_value` took apart; `space` says how it was built."""
    if isinstance(space, spaces.Dict):
        return {key: unflatten(leaves, part, f"{root}{SEPARATOR}{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(unflatten(leaves, part, f"{root}{SEPARATOR}{i}") for i, part in enumerate(space.spaces))
    return leaves[root]


def _parts(space: gym.Space) -> list[tuple[Any, gym.Space]]:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    return []


def _allowed() -> str:
    return "allowed are " + ", ".join(kind.__name__ for kind in _CODECS)


def _box_to_json(space: spaces.Box) -> Json:
    return {
        "low": _bounds_to_json(space.low),
        "high": _bounds_to_json(space.high),
        "shape": list(space.shape),
        "dtype": space.dtype.name,
    }


def _box_from_json(data: Json) -> gym.Space:
    shape, dtype = tuple(data["shape"]), np.dtype(data.get("dtype", "float32"))
    low, high = (
        np.array(np.broadcast_to(_bounds_from_json(data[side], dtype), shape)) for side in ("low", "high")
    )
    return spaces.Box(low, high, shape=shape, dtype=dtype.type)


def _bounds_to_json(bounds: NDArray[Any]) -> Any:
    if bounds.size and (bounds == bounds.flat[0]).all():
        return _number_to_json(bounds.flat[0].item())
    return _nested(bounds.tolist(), _number_to_json)


def _bounds_from_json(bounds: Any, dtype: np.dtype) -> NDArray[Any]:
    read = float if dtype.kind == "f" else int
    return np.array(_nested(bounds, read), dtype=dtype)


def _number_to_json(number: float) -> float | str:
    return str(number) if isinstance(number, float) and np.isinf(number) else number


def _nested(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_nested(item, function) for item in value]
    return function(value)


def _discrete_to_json(space: spaces.Discrete) -> Json:
    data: Json = {"n": int(space.n), "start": int(space.start)}
    return data if space.dtype == np.int64 else {**data, "dtype": space.dtype.name}


def _discrete_from_json(data: Json) -> gym.Space:
    start, dtype = data.get("start", 0), np.dtype(data.get("dtype", "int64"))
    if dtype == np.int64:  # the parameter is younger than the oldest Gymnasium that we take
        return spaces.Discrete(data["n"], start=start)
    return spaces.Discrete(data["n"], start=start, dtype=dtype.type)


def _multi_discrete_to_json(space: spaces.MultiDiscrete) -> Json:
    data: Json = {"nvec": space.nvec.tolist(), "dtype": space.dtype.name}
    return {**data, "start": space.start.tolist()} if space.start.any() else data


def _multi_discrete_from_json(data: Json) -> gym.Space:
    nvec, dtype = np.array(data["nvec"]), np.dtype(data.get("dtype", "int64"))
    start = np.array(data["start"]) if data.get("start") is not None else None
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _multi_binary_to_json(space: spaces.MultiBinary) -> Json:
    return {"n": int(space.n) if isinstance(space.n, int | np.integer) else [int(size) for size in space.n]}


def _text_to_json(space: spaces.Text) -> Json:
    return {"maxLength": space.max_length, "minLength": space.min_length, "charset": space.characters}


def _text_from_json(data: Json) -> gym.Space:
    charset = data.get("charset")
    limits = {"max_length": data["maxLength"], "min_length": data.get("minLength", 1)}
    return spaces.Text(**limits) if charset is None else spaces.Text(**limits, charset=charset)


def _dict_to_json(space: spaces.Dict) -> Json:
    return {"spaces": {str(key): space_to_json(part) for key, part in space.spaces.items()}}


_Codec = tuple[Callable[[Any], Json], Callable[[Json], gym.Space]]
_CODECS: dict[type[gym.Space], _Codec] = {
    spaces.Box: (_box_to_json, _box_from_json),
    spaces.Discrete: (_discrete_to_json, _discrete_from_json),
    spaces.MultiDiscrete: (_multi_discrete_to_json, _multi_discrete_from_json),
    spaces.MultiBinary: (_multi_binary_to_json, lambda data: spaces.MultiBinary(data["n"])),
    spaces.Text: (_text_to_json, _text_from_json),
    spaces.Dict: (
        _dict_to_json,
        lambda data: spaces.Dict({key: space_from_json(part) for key, part in data["spaces"].items()}),
    ),
    spaces.Tuple: (
        lambda space: {"spaces": [space_to_json(part) for part in space.spaces]},
        lambda data: spaces.Tuple([space_from_json(part) for part in data["spaces"]]),
    ),
}
