"""`_hindcast/manifest.json`: the description of a dataset, and the checksums of its indices."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import ValidationError

from hindcast.api.sentences import value_problem
from hindcast.errors import DataError
from hindcast.formats.arrow.layout import ARROW_EPISODES
from hindcast.formats.dataset_folder.index import (
    read_index,
    remove_other_indices,
    write_episodes,
    write_index,
)
from hindcast.formats.entries import FileEntry, JsonModel
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location

FOLDER = "_hindcast"
MANIFEST = f"{FOLDER}/manifest.json"
FORMAT_VERSION = 2
"""Version 1 had the files in the manifest instead of an index."""


class Manifest(JsonModel):
    """Description of a complete dataset.

    Attributes:
        format_version: version of this file's format.
        layout: layout of the data files.
        spec_hash: hash of the resource that recorded the dataset.
        environment: the resource's environment (id, kwargs, wrappers, …).
        seed: the resource's seed.
        policy: the recorded policy: its source, and `digest`, the sha256 of its weights.
        recorder: version of Hindcast that recorded the dataset.
        versions: package -> version, for the packages that the data depend on.
        connectors: states of connectors and filters during recording.
        spec: `DataSpec.to_json()`.
        files: data files, in the dataset's order; stored in the index.
        episode_index: checksum of the index of episodes; None if a file was recorded by an earlier version.
    """

    format_version: int = FORMAT_VERSION
    layout: str = ARROW_EPISODES
    spec_hash: str | None = None
    environment: dict[str, Any] | None = None
    seed: int | None = None
    policy: dict[str, Any] = {}
    recorder: str | None = None
    versions: dict[str, str] = {}
    connectors: dict[str, Any] = {}
    spec: dict[str, Any]
    files: tuple[FileEntry, ...]
    episode_index: str | None = None

    @property
    def data_spec(self) -> DataSpec:
        """The field `spec` as a `DataSpec`."""
        return DataSpec.from_json(self.spec)

    @property
    def digest(self) -> str:
        """sha256 (hex) of the files' checksums, in order; independent of their names."""
        return digest_of([file.checksum for file in self.files])


def digest_of(texts: list[str]) -> str:
    """Return the sha256 (hex) of texts, joined by line ends."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def write_manifest(folder: Location, manifest: Manifest) -> None:
    """Write the manifest and its indices to the dataset's folder, replacing earlier ones.

    Raises:
        StorageError: the manifest cannot be written.
    """
    state_folder = folder.child(FOLDER)
    checksum = write_index(state_folder, manifest.files)
    episode_index = write_episodes(state_folder, manifest.files)
    document = manifest.model_dump(mode="json", by_alias=True, exclude={"files"})
    document |= {"formatVersion": FORMAT_VERSION, "index": checksum, "episodeIndex": episode_index}
    folder.child(MANIFEST).write_bytes(json.dumps(document).encode())
    remove_other_indices(state_folder, (checksum, episode_index))


def read_manifest(folder: Location) -> Manifest | None:
    """Read the manifest of a dataset's folder; None if it has no manifest.

    Raises:
        DataError: the manifest or its index cannot be read, or was written by a newer Hindcast.
    """
    location = folder.child(MANIFEST)
    if not location.exists():
        return None
    data = location.read_bytes()
    try:
        # checked first, because a newer manifest may have other fields
        document = json.loads(data)
        version = document.get("formatVersion")
        if version not in range(1, FORMAT_VERSION + 1):
            raise DataError(
                f"has the format version {version!r}, but this Hindcast reads up to {FORMAT_VERSION}: "
                "update Hindcast",
                path=str(location),
            )
        if "index" not in document:
            return Manifest.model_validate(document)
        manifest = Manifest.model_validate(document | {"files": ()})
        return manifest.model_copy(update={"files": read_index(folder.child(FOLDER), document["index"])})
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"cannot be read: {describe_first_problem(error)}", path=str(location)) from error


def describe_first_problem(error: Exception) -> str:
    """Describe the first problem of a stored JSON document, as a clause.

    Args:
        error: raised when the document was parsed or validated.
    """
    if isinstance(error, ValidationError):
        field_path = ".".join(map(str, error.errors()[0]["loc"]))
        return f"{field_path}: {value_problem(error)}"
    return str(error)
