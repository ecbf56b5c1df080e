"""Gymnasium spaces: the two stored forms of each kind, and the structure of composite spaces.

Each kind of space has a class here, and a model in `api.spaces`, which imports neither Gymnasium nor NumPy.
`space_struct` splits composite spaces into leaf spaces, and `space_from_struct` combines them.

JSON is the readable form of resources, manifests and checkpoints: `{"type": "Box", "low": …}`. State is the form in
an episode's state (`SingleAgentEpisode.get_state`): the maps of RLlib's episode files, `{"space": "box", "low": …}`,
with arrays as base64 of zlib of the `.npy` format.
"""

from __future__ import annotations

import base64
import binascii
import io
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.api.sentences import nearest
from hindcast.episodes.nested import Nested, flatten
from hindcast.errors import DataError

_ARRAY_FIELDS: Final = ("low", "high", "nvec", "start")
# np.load parses an array's header with `ast`, which is not thread-safe before Python 3.11.8 (gh-106905).
_HEADER_LOCK: Final = threading.Lock()
_JSON_NAMES: Final = {"max_length": "maxLength", "min_length": "minLength", "subspaces": "spaces"}

Json = dict[str, Any]
State = dict[str, Any]


class NamedBox(spaces.Box):
    """A Box of at most one axis with a name for each element, such as the columns of a table.

    Attributes:
        names: one name per element.

    Raises:
        ValueError: the number of names is not the number of elements, or a name occurs twice.
    """

    def __init__(self, box: spaces.Box, names: Sequence[str]) -> None:
        if len(box.shape) > 1 or len(names) != int(np.prod(box.shape)) or len(set(names)) < len(names):
            raise ValueError(
                f"the names {list(names)} do not fit a Box of shape {list(box.shape)}: each element of a vector "
                "requires one name, and no name may occur twice"
            )
        super().__init__(box.low, box.high, shape=box.shape, dtype=box.dtype.type)
        self.names = tuple(names)

    def to_array(self, values: Mapping[str, Any]) -> NDArray[Any]:
        """Return named values in the order of the names; a value that is None or left out is NaN.

        Raises:
            DataError: a name is unknown.
        """
        for name in values:
            if name not in self.names:
                raise DataError(f"has no element {name!r}{nearest(str(name), self.names)}")
        ordered = [values.get(name) for name in self.names]
        return np.array([np.nan if value is None else value for value in ordered]).reshape(self.shape)


def names_of(space: gym.Space) -> tuple[str, ...]:
    """Return the name of each element of a space; empty if they have none."""
    return space.names if isinstance(space, NamedBox) else ()


def read_named(value: Any, space: gym.Space | None) -> Any:
    """Convert a value that a user writes to a value of the space.

    A mapping for a `NamedBox` (`{"heart_rate": 80}`) becomes an array, and None among floats becomes NaN.

    Raises:
        DataError: a name is unknown.
    """
    if isinstance(space, NamedBox) and isinstance(value, Mapping):
        return space.to_array(value)
    if isinstance(space, spaces.Dict) and isinstance(value, Mapping):
        return {key: read_named(child, space.spaces.get(key)) for key, child in value.items()}
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return value
    has_none = value is None or (isinstance(value, list | tuple) and any(item is None for item in value))
    return np.array(value, dtype=space.dtype) if has_none else value  # None becomes NaN


class SpaceKind(ABC):
    """A kind of space, and its fields in both forms.

    Attributes:
        space: class of the space; JSON uses its name.
        state_name: name in an episode's state.
    """

    space: type[gym.Space]
    state_name: str

    @property
    def name(self) -> str:
        """Name in JSON."""
        return self.space.__name__

    @abstractmethod
    def to_json(self, space: Any) -> Json:
        """Return the JSON fields, without the type."""

    @abstractmethod
    def to_state(self, space: Any) -> State:
        """Return the state's fields, without the kind."""

    @abstractmethod
    def read(self, fields: Mapping[str, Any]) -> gym.Space:
        """Make the space from fields with their JSON names; fields with a default may be missing.

        Bounds and sizes from a state are already arrays, and subspaces are already spaces.
        """


def space_to_json(space: gym.Space) -> Json:
    """Encode a space as JSON: `{"type": "Box", "low": …, "high": …, "shape": …, "dtype": …}` and so on.

    Bounds that are the same everywhere become one number; infinities become "-inf" and "inf".

    Raises:
        DataError: the kind of space cannot be recorded (Graph, Sequence, OneOf, custom spaces).
    """
    for kind in KINDS:
        if type(space) is kind.space or (type(space) is NamedBox and kind.space is spaces.Box):
            return {"type": kind.name, **kind.to_json(space)}
    raise DataError(
        f"the space {space} has kind {type(space).__name__}, which cannot be recorded: {_list_json_names()}"
    )


def space_from_json(data: Json) -> gym.Space:
    """Decode a space from JSON; bounds may be lists or numbers, and fields may have Minari's names.

    Raises:
        DataError: the type is unknown, or a field is missing or invalid.
    """
    for kind in KINDS:
        if data.get("type") == kind.name:
            try:
                return kind.read(_read_subspaces(_rename_fields(data), space_from_json))
            except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
                raise DataError(f"the {kind.name} space {data} cannot be read: {error!r}") from error
    raise DataError(f"a space has the type {data.get('type')!r}: {_list_json_names()}")


def space_to_state(space: gym.Space) -> State:
    """Encode a space as a map of plain values.

    Raises:
        ValueError: episode files cannot hold this kind of space (Graph, Sequence, OneOf, custom spaces).
    """
    for kind in KINDS:
        if isinstance(space, kind.space):
            return {"space": kind.state_name, **kind.to_state(space)}
    raise ValueError(f"the space {space} cannot be part of an episode's state; {_list_state_names()}")


def space_from_state(state: Mapping[str, Any] | None) -> gym.Space | None:
    """Decode a space from its state: the inverse of `space_to_state`; None stays None.

    Raises:
        ValueError: the kind is unknown, or a field is missing or invalid.
    """
    if state is None:
        return None
    for kind in KINDS:
        if state.get("space") == kind.state_name:
            try:
                return kind.read(_read_subspaces(_state_to_json(state), space_from_state))
            except (KeyError, TypeError, AttributeError, AssertionError, zlib.error, binascii.Error) as error:
                raise ValueError(
                    f"the {kind.state_name} space in an episode's state cannot be read: {error!r}"
                ) from error
    raise ValueError(
        f"an episode's state has a space of the kind {state.get('space')!r}; {_list_state_names()}"
    )


def space_struct(space: gym.Space | None) -> Nested:
    """Return the leaf spaces of a space, nested like its samples, with Dict keys in order. None stays None."""
    if isinstance(space, spaces.Dict):
        return {key: space_struct(subspace) for key, subspace in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_struct(subspace) for subspace in space.spaces)
    return space


def space_from_struct(struct: Nested) -> gym.Space:
    """Make a space from its leaf spaces: the inverse of `space_struct`."""
    if isinstance(struct, dict):
        return spaces.Dict({key: space_from_struct(substruct) for key, substruct in struct.items()})
    if isinstance(struct, tuple):
        return spaces.Tuple([space_from_struct(substruct) for substruct in struct])
    return struct


def flatten_space(space: gym.Space, root: str) -> dict[str, gym.Space]:
    """Return leaf name -> leaf space: `obs/camera`, `actions/0`; a space that is a leaf has the name `root`.

    Raises:
        DataError: two keys make the same leaf name.
    """
    try:
        return flatten(space_struct(space), root)
    except ValueError as error:
        raise DataError(f"the space {space} cannot be flattened: {error}") from error


def num_values(space: spaces.Discrete | spaces.MultiDiscrete) -> Any:
    """Return how many values each element of a sample can have: an int, or `[*shape]` for a MultiDiscrete."""
    return space.n if isinstance(space, spaces.Discrete) else space.nvec


class _Box(SpaceKind):
    space = spaces.Box
    state_name = "box"

    def to_json(self, space: spaces.Box) -> Json:
        return {
            "low": _bounds_to_json(space.low),
            "high": _bounds_to_json(space.high),
            "shape": list(space.shape),
            "dtype": space.dtype.name,
            **({"names": list(space.names)} if isinstance(space, NamedBox) else {}),
        }

    def to_state(self, space: spaces.Box) -> State:
        return {
            "low": _encode_array(space.low),
            "high": _encode_array(space.high),
            "shape": space.shape,
            "dtype": space.dtype.str,
        }

    def read(self, fields: Mapping[str, Any]) -> gym.Space:
        shape, dtype = tuple(fields["shape"]), np.dtype(fields.get("dtype", "float32"))
        low = np.broadcast_to(_bounds_from_json(fields["low"], dtype), shape)
        high = np.broadcast_to(_bounds_from_json(fields["high"], dtype), shape)
        # copies, because broadcast arrays are read-only
        box = spaces.Box(np.array(low), np.array(high), shape=shape, dtype=dtype.type)
        return NamedBox(box, fields["names"]) if fields.get("names") is not None else box


class _Discrete(SpaceKind):
    space = spaces.Discrete
    state_name = "discrete"

    def to_json(self, space: spaces.Discrete) -> Json:
        data = self.to_state(space)
        return data if space.dtype == np.int64 else {**data, "dtype": space.dtype.name}

    def to_state(self, space: spaces.Discrete) -> State:
        return {"n": int(space.n), "start": int(space.start)}

    def read(self, fields: Mapping[str, Any]) -> gym.Space:
        start, dtype = fields.get("start", 0), np.dtype(fields.get("dtype", "int64"))
        if dtype == np.int64:  # the oldest supported Gymnasium has no parameter `dtype`
            return spaces.Discrete(fields["n"], start=start)
        return spaces.Discrete(fields["n"], start=start, dtype=dtype.type)


class _MultiDiscrete(SpaceKind):
    space = spaces.MultiDiscrete
    state_name = "multi-discrete"

    def to_json(self, space: spaces.MultiDiscrete) -> Json:
        data: Json = {"nvec": space.nvec.tolist(), "dtype": space.dtype.name}
        return {**data, "start": space.start.tolist()} if space.start.any() else data

    def to_state(self, space: spaces.MultiDiscrete) -> State:
        state: State = {"nvec": _encode_array(space.nvec), "dtype": space.dtype.str}
        return {**state, "start": _encode_array(space.start)} if space.start.any() else state

    def read(self, fields: Mapping[str, Any]) -> gym.Space:
        nvec, dtype = np.array(fields["nvec"]), np.dtype(fields.get("dtype", "int64"))
        start = np.array(fields["start"]) if fields.get("start") is not None else None
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


class _MultiBinary(SpaceKind):
    space = spaces.MultiBinary
    state_name = "multi-binary"

    def to_json(self, space: spaces.MultiBinary) -> Json:
        n = space.n
        return {"n": int(n) if isinstance(n, int | np.integer) else [int(size) for size in n]}

    def to_state(self, space: spaces.MultiBinary) -> State:
        return {"n": space.n}

    def read(self, fields: Mapping[str, Any]) -> gym.Space:
        return spaces.MultiBinary(fields["n"])


class _Text(SpaceKind):
    space = spaces.Text
    state_name = "text"

    def to_json(self, space: spaces.Text) -> Json:
        return {"maxLength": space.max_length, "minLength": space.min_length, "charset": space.characters}

    def to_state(self, space: spaces.Text) -> State:
        return {
            "min_length": space.min_length,
            "max_length": space.max_length,
            "charset": space.characters,
        }

    def read(self, fields: Mapping[str, Any]) -> gym.Space:
        charset = fields.get("charset")
        limits = {"max_length": fields["maxLength"], "min_length": fields.get("minLength", 1)}
        if charset is None:
            return spaces.Text(**limits)
        return spaces.Text(**limits, charset=charset if isinstance(charset, str) else frozenset(charset))


class _Composite(SpaceKind):
    """Spaces that consist of subspaces, which are in the field `spaces`, as a list or by key."""

    def to_json(self, space: Any) -> Json:
        return {"spaces": _map_subspaces(space_to_json, space.spaces)}

    def to_state(self, space: Any) -> State:
        return {"spaces": _map_subspaces(space_to_state, space.spaces)}

    def read(self, fields: Mapping[str, Any]) -> gym.Space:
        return self.space(fields["spaces"])


class _Dict(_Composite):
    space = spaces.Dict
    state_name = "dict"

    def to_json(self, space: spaces.Dict) -> Json:
        return {"spaces": {str(key): space_to_json(part) for key, part in space.spaces.items()}}


class _Tuple(_Composite):
    space = spaces.Tuple
    state_name = "tuple"


KINDS: Final = (_Box(), _Discrete(), _MultiDiscrete(), _MultiBinary(), _Text(), _Dict(), _Tuple())


def _list_json_names() -> str:
    return "allowed are " + ", ".join(kind.name for kind in KINDS)


def _list_state_names() -> str:
    return "allowed are " + ", ".join(kind.state_name for kind in KINDS)


def _bounds_to_json(bounds: NDArray[Any]) -> Any:
    if bounds.size and (bounds == bounds.flat[0]).all():
        return _number_to_json(bounds.flat[0].item())
    return _map_nested(bounds.tolist(), _number_to_json)


def _bounds_from_json(bounds: Any, dtype: np.dtype) -> NDArray[Any]:
    if isinstance(bounds, np.ndarray):
        return bounds
    read = float if dtype.kind == "f" else int
    return np.array(_map_nested(bounds, read), dtype=dtype)


def _number_to_json(number: float) -> float | str:
    return str(number) if isinstance(number, float) and np.isinf(number) else number


def _read_subspaces(fields: Mapping[str, Any], read: Callable[[Any], Any]) -> Mapping[str, Any]:
    return {**fields, "spaces": _map_subspaces(read, fields["spaces"])} if "spaces" in fields else fields


def _state_to_json(state: Mapping[str, Any]) -> Json:
    """Return the fields of a state by their names in JSON, with arrays decoded."""
    return {
        name: _decode_array(value) if name in _ARRAY_FIELDS and isinstance(value, str) else value
        for name, value in _rename_fields(state).items()
    }


def _rename_fields(fields: Mapping[str, Any]) -> Json:
    """Return the fields by their names in JSON; states and Minari have other names for some fields."""
    return {_JSON_NAMES.get(name, name): value for name, value in fields.items()}


def _map_subspaces(function: Callable[[Any], Any], subspaces: Any) -> Any:
    if isinstance(subspaces, Mapping):
        return {key: function(subspace) for key, subspace in subspaces.items()}
    return [function(subspace) for subspace in subspaces]


def _map_nested(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_map_nested(item, function) for item in value]
    return function(value)


def _encode_array(array: NDArray[Any]) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode("ascii")


def _decode_array(text: str) -> NDArray[Any]:
    file = io.BytesIO(zlib.decompress(base64.b64decode(text)))
    with _HEADER_LOCK:
        return np.load(file, allow_pickle=False)
