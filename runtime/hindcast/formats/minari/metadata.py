"""Metadata of a Minari dataset, from `metadata.json`, or from the attributes of the HDF5 file in old datasets.

Minari's own reader is not used: if a space is missing, it creates the environment that the metadata name, which would
run code that an untrusted file chooses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

import gymnasium as gym
from pydantic import BaseModel, BeforeValidator, ConfigDict, NonNegativeInt, ValidationError

from hindcast.api.sentences import problems_of
from hindcast.episodes.spaces import space_from_json
from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location

METADATA_FILE: Final = "metadata.json"
MAIN_FILE: Final = "main_data.hdf5"
_MAX_BYTES: Final = 64 << 20


def _parse_space(data: Any) -> gym.Space | None:
    try:
        return None if data is None else space_from_json(_parse_object(data))
    except (DataError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"cannot be read: {error}") from error


def _parse_environment(data: Any) -> Any:
    """Return only the environment's id: an entry point that a file names is never imported."""
    return None if data is None else _parse_object(data).get("id")


_Space = Annotated[gym.Space | None, BeforeValidator(_parse_space)]


class MinariMetadata(BaseModel):
    """Metadata of a dataset, with Minari's names; missing values are None, but `data_format` is "hdf5".

    Attributes:
        dataset_id: such as "D4RL/door/human-v2"; by default the name of the dataset's folder.
        data_format: "hdf5", "arrow" or "parquet".
        observation_space, action_space: None in old datasets, which name only the environment.
        env_spec: id of the environment.
        jpeg_encoding: whether images are stored as JPEG.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)

    dataset_id: str
    data_format: str = "hdf5"
    observation_space: _Space = None
    action_space: _Space = None
    env_spec: Annotated[str | None, BeforeValidator(_parse_environment)] = None
    total_episodes: NonNegativeInt | None = None
    total_steps: NonNegativeInt | None = None
    jpeg_encoding: bool | None = None

    @property
    def spec(self) -> DataSpec:
        """The environment and the spaces."""
        return DataSpec(
            observation_space=self.observation_space,
            action_space=self.action_space,
            environment=self.env_spec,
            normalized_actions=False,
        )


def read_metadata(location: Location) -> MinariMetadata:
    """Read the metadata of a dataset; `location` is its main file or its `metadata.json`.

    Raises:
        DataError: the metadata cannot be read.
        StorageError: the storage fails.
    """
    document = location if location.name == METADATA_FILE else location.parent().child(METADATA_FILE)
    if location.name == METADATA_FILE or document.exists():
        return _validate(document, read_json(document))
    with hdf5.open_file(location) as file, hdf5.translate_errors(location):
        attributes = {name: _to_json_value(file.attrs[name]) for name in file.attrs}
    return _validate(location, attributes)


def read_json(location: Location) -> dict[str, Any]:
    """Read a metadata file.

    Raises:
        DataError: the file is not a JSON object, or is too large.
    """
    size = location.info().size or 0
    if size > _MAX_BYTES:
        raise DataError(f"has {size} bytes, which is too large for metadata of Minari", path=str(location))
    try:
        return _parse_object(location.read_bytes())
    except ValueError as error:
        raise DataError(f"is not metadata of Minari: {error}; copy it again", path=str(location)) from error


def _validate(location: Location, data: Mapping[str, Any]) -> MinariMetadata:
    folder = location.parent()
    dataset_folder = folder.parent() if folder.name == "data" else folder
    fields = {**data, "dataset_id": data.get("dataset_id") or dataset_folder.name or location.name}
    try:
        return MinariMetadata.model_validate(fields)
    except ValidationError as error:
        problem, *_ = problems_of(error, MinariMetadata, fields)
        raise DataError(str(problem), path=str(location)) from error


def _parse_object(value: Any) -> dict[str, Any]:
    document = json.loads(value) if isinstance(value, str | bytes) else value
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, found {document!r:.80}")
    return document


def _to_json_value(value: Any) -> Any:
    """Convert an attribute to JSON: h5py returns NumPy scalars, and bytes for fixed-length text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value
