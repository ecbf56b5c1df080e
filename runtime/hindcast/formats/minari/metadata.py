"""What a Minari dataset says of itself: `metadata.json`, or, in old ones, attributes of the HDF5 file.

Read by us and not by Minari, which makes the environment that is named where a space is missing: that would run what a
stranger wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym

from hindcast.episodes.spaces import space_from_json
from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location

METADATA: Final = "metadata.json"
MAIN: Final = "main_data.hdf5"
_RENAMED: Final = {"max_length": "maxLength", "min_length": "minLength", "subspaces": "spaces"}
_MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class MinariMetadata:
    """What a dataset says of itself.

    Attributes:
        name: its id, such as "D4RL/door/human-v2"; where it does not say, the name of its folder.
        format: "hdf5", "arrow" or "parquet".
        spec: environment and spaces; without the spaces in old datasets that name the environment only.
        episodes: how many there are; None if it does not say.
        steps: how many there are; None if it does not say.
        jpeg: whether images are stored as JPEG; None if it does not say.
    """

    name: str
    format: str
    spec: DataSpec
    episodes: int | None
    steps: int | None
    jpeg: bool | None


def metadata_of(location: Location) -> MinariMetadata:
    """What the dataset of a main file, or of a `metadata.json`, says of itself.

    Raises:
        DataError: metadata that cannot be read.
        StorageError: storage that refuses.
    """
    document = location if location.name == METADATA else location.parent().child(METADATA)
    if location.name == METADATA or document.exists():
        return _from_json(document, read_json(document))
    with hdf5.opened(location) as file, hdf5.faults(location):
        attributes = {name: _plain(file.attrs[name]) for name in file.attrs}
    return _from_json(location, attributes)


def read_json(location: Location) -> dict[str, Any]:
    """A metadata file.

    Raises:
        DataError: it is not JSON, no object, or larger than any metadata.
    """
    size = location.info().size or 0
    if size > _MAX_BYTES:
        raise DataError(f"{location} has {size} bytes: that is not metadata of Minari")
    try:
        return _object(location.read_bytes())
    except ValueError as error:
        raise DataError(f"{location} is not metadata of Minari: {error}; copy it again") from error


def _from_json(location: Location, data: Mapping[str, Any]) -> MinariMetadata:
    folder = location.parent()
    home = folder.parent() if folder.name == "data" else folder
    return MinariMetadata(
        name=str(data.get("dataset_id") or home.name or location.name),
        format=str(data.get("data_format", "hdf5")),
        spec=DataSpec(
            observation_space=_space(location, data, "observation_space"),
            action_space=_space(location, data, "action_space"),
            environment=_environment(location, data),
            normalized_actions=False,
        ),
        episodes=_count(location, data, "total_episodes"),
        steps=_count(location, data, "total_steps"),
        jpeg=data.get("jpeg_encoding"),
    )


def _space(location: Location, data: Mapping[str, Any], key: str) -> gym.Space | None:
    if data.get(key) is None:
        return None
    try:
        return space_from_json(_renamed(_object(data[key])))
    except (DataError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{location}: {key} cannot be read: {error}") from error


def _renamed(space: Any) -> dict[str, Any]:
    """Minari's JSON of a space with Hindcast's names of the fields."""
    named = {_RENAMED.get(key, key): value for key, value in space.items()}
    parts = named.get("spaces")
    if isinstance(parts, Mapping):
        named["spaces"] = {key: _renamed(part) for key, part in parts.items()}
    elif parts is not None:
        named["spaces"] = [_renamed(part) for part in parts]
    return named


def _environment(location: Location, data: Mapping[str, Any]) -> str | None:
    """The id alone; an entry point found in a file is never imported."""
    if data.get("env_spec") is None:
        return None
    try:
        name = _object(data["env_spec"]).get("id")
    except ValueError as error:
        raise DataError(f"{location}: env_spec cannot be read: {error}") from error
    return None if name is None else str(name)


def _object(value: Any) -> dict[str, Any]:
    found = json.loads(value) if isinstance(value, str | bytes) else value
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {found!r:.80}")
    return found


def _count(location: Location, data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise DataError(f"{location}: {key} is {value!r}, expected a number")
    return int(value)


def _plain(value: Any) -> Any:
    """An attribute as JSON has it: h5py gives NumPy's scalars, and bytes for fixed-length text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value
