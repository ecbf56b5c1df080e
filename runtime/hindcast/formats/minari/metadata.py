"""What a Minari dataset says of itself: `metadata.json`, or, in old ones, attributes of the HDF5 file.

Read by us and not by Minari, which makes the environment that is named where a space is missing: that would run what a
stranger wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

import gymnasium as gym
from pydantic import BaseModel, BeforeValidator, ConfigDict, NonNegativeInt, ValidationError

from hindcast.api.sentences import problems_of, sentence
from hindcast.episodes.spaces import space_from_json
from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location

METADATA_FILE: Final = "metadata.json"
MAIN_FILE: Final = "main_data.hdf5"
_MAX_BYTES: Final = 64 << 20


def _space(data: Any) -> gym.Space | None:
    try:
        return None if data is None else space_from_json(_object(data))
    except (DataError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"cannot be read: {error}") from error


def _environment(data: Any) -> Any:
    """The id alone; an entry point found in a file is never imported."""
    return None if data is None else _object(data).get("id")


_Space = Annotated[gym.Space | None, BeforeValidator(_space)]


class MinariMetadata(BaseModel):
    """What a dataset says of itself, under Minari's names; None where it does not say.

    Attributes:
        dataset_id: such as "D4RL/door/human-v2"; where it does not say, the name of its folder.
        data_format: "hdf5", "arrow" or "parquet".
        observation_space: missing in old datasets that name the environment only, as is `action_space`.
        env_spec: the environment's id.
        jpeg_encoding: whether images are stored as JPEG.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)

    dataset_id: str
    data_format: str = "hdf5"
    observation_space: _Space = None
    action_space: _Space = None
    env_spec: Annotated[str | None, BeforeValidator(_environment)] = None
    total_episodes: NonNegativeInt | None = None
    total_steps: NonNegativeInt | None = None
    jpeg_encoding: bool | None = None

    @property
    def spec(self) -> DataSpec:
        """Environment and spaces."""
        return DataSpec(
            observation_space=self.observation_space,
            action_space=self.action_space,
            environment=self.env_spec,
            normalized_actions=False,
        )


def read_metadata(location: Location) -> MinariMetadata:
    """What the dataset of a main file, or of a `metadata.json`, says of itself.

    Raises:
        DataError: metadata that cannot be read.
        StorageError: storage that refuses.
    """
    document = location if location.name == METADATA_FILE else location.parent().child(METADATA_FILE)
    if location.name == METADATA_FILE or document.exists():
        return _checked(document, read_json(document))
    with hdf5.open_file(location) as file, hdf5.translate_errors(location):
        attributes = {name: _plain(file.attrs[name]) for name in file.attrs}
    return _checked(location, attributes)


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


def _checked(location: Location, data: Mapping[str, Any]) -> MinariMetadata:
    folder = location.parent()
    home = folder.parent() if folder.name == "data" else folder
    named = {**data, "dataset_id": data.get("dataset_id") or home.name or location.name}
    try:
        return MinariMetadata.model_validate(named)
    except ValidationError as error:
        problem, *_ = problems_of(error, MinariMetadata, named)
        raise DataError(f"{location}: {sentence(problem)}") from error


def _object(value: Any) -> dict[str, Any]:
    found = json.loads(value) if isinstance(value, str | bytes) else value
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {found!r:.80}")
    return found


def _plain(value: Any) -> Any:
    """An attribute as JSON has it: h5py gives NumPy's scalars, and bytes for fixed-length text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value
