"""Gymnasium spaces in the form that they have in an episode's state (`SingleAgentEpisode.get_state`).

The maps are those of RLlib's episode files: `{space: box, low, high, shape, dtype}` and so on, arrays
as base64 of zlib of the `.npy` format. Manifests, checkpoints and resources use another, readable form.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

State = dict[str, Any]


def space_to_state(space: spaces.Space) -> State:
    """The space as a map of plain values.

    Raises:
        ValueError: a kind of space that episode files cannot hold (Graph, Sequence, OneOf, your own).
    """
    for kind, name, write, _ in _KINDS:
        if isinstance(space, kind):
            return {"space": name, **write(space)}
    raise ValueError(f"the space {space} cannot be part of an episode's state; allowed are {_allowed()}")


def space_from_state(state: Mapping[str, Any] | None) -> spaces.Space | None:
    """The inverse of `space_to_state`; None stays None.

    Raises:
        ValueError: an unknown kind, or a field that is missing or wrong.
    """
    if state is None:
        return None
    for _, name, _, read in _KINDS:
        if state.get("space") == name:
            try:
                return read(state)
            except (KeyError, TypeError, AssertionError, zlib.error) as error:
                raise ValueError(
                    f"the {name} space in an episode's state cannot be read: {error!r}"
                ) from error
    raise ValueError(
        f"an episode's state has a space of the kind {state.get('space')!r}; allowed are {_allowed()}"
    )


def _box(state: Mapping[str, Any]) -> spaces.Space:
    dtype = np.dtype(state["dtype"])
    return spaces.Box(_decode(state["low"]), _decode(state["high"]), tuple(state["shape"]), dtype.type)


def _multi_discrete(state: Mapping[str, Any]) -> spaces.Space:
    start = state.get("start")
    return spaces.MultiDiscrete(
        _decode(state["nvec"]), np.dtype(state["dtype"]).type, start=None if start is None else _decode(start)
    )


def _text(state: Mapping[str, Any]) -> spaces.Space:
    charset = state["charset"]
    return spaces.Text(
        state["max_length"],
        min_length=state["min_length"],
        charset=charset if isinstance(charset, str) else frozenset(charset),
    )


def _multi_binary(state: Mapping[str, Any]) -> spaces.Space:
    n = state["n"]
    return spaces.MultiBinary(n if isinstance(n, int) else tuple(n))


def _allowed() -> str:
    return ", ".join(name for _, name, _, _ in _KINDS)


def _encode(array: NDArray[Any]) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode("ascii")


def _decode(text: str) -> NDArray[Any]:
    return np.load(io.BytesIO(zlib.decompress(base64.b64decode(text))), allow_pickle=False)


_Kind = tuple[type[spaces.Space], str, Callable[[Any], State], Callable[[Mapping[str, Any]], spaces.Space]]
_KINDS: tuple[_Kind, ...] = (
    (
        spaces.Box,
        "box",
        lambda space: {
            "low": _encode(space.low),
            "high": _encode(space.high),
            "shape": space.shape,
            "dtype": space.dtype.str,
        },
        _box,
    ),
    (
        spaces.Discrete,
        "discrete",
        lambda space: {"n": int(space.n), "start": int(space.start)},
        lambda state: spaces.Discrete(state["n"], start=state["start"]),
    ),
    (spaces.MultiBinary, "multi-binary", lambda space: {"n": space.n}, _multi_binary),
    (
        spaces.MultiDiscrete,
        "multi-discrete",
        lambda space: {
            "nvec": _encode(space.nvec),
            "dtype": space.dtype.str,
            **({"start": _encode(space.start)} if space.start.any() else {}),
        },
        _multi_discrete,
    ),
    (
        spaces.Tuple,
        "tuple",
        lambda space: {"spaces": [space_to_state(part) for part in space.spaces]},
        lambda state: spaces.Tuple([space_from_state(part) for part in state["spaces"]]),
    ),
    (
        spaces.Dict,
        "dict",
        lambda space: {"spaces": {key: space_to_state(part) for key, part in space.spaces.items()}},
        lambda state: spaces.Dict({key: space_from_state(part) for key, part in state["spaces"].items()}),
    ),
    (
        spaces.Text,
        "text",
        lambda space: {
            "min_length": space.min_length,
            "max_length": space.max_length,
            "charset": space.characters,
        },
        _text,
    ),
)
