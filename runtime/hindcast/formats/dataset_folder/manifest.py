"""`_hindcast/manifest.json`: what a dataset is and which files it consists of."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import ValidationError

from hindcast.api.sentences import value_problem
from hindcast.errors import DataError
from hindcast.formats.arrow.layout import ARROW_EPISODES
from hindcast.formats.entries import FileEntry, JsonModel
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location

FOLDER = "_hindcast"
MANIFEST = f"{FOLDER}/manifest.json"
FORMAT_VERSION = 1


class Manifest(JsonModel):
    """A complete dataset.

    Attributes:
        format_version: of this file.
        layout: of the Parquet files.
        spec_hash: of the resource that made it.
        environment: the resource's environment (id, kwargs, wrappers, …).
        seed: the resource's.
        policy: what acted: `digest` (sha256 of the weights), and where it came from.
        recorder: version of Hindcast that recorded.
        versions: of the packages that its data depend on.
        connectors: state of connectors and filters while recording.
        spec: `DataSpec.to_json()`.
        files: in the dataset's order.
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

    @property
    def data_spec(self) -> DataSpec:
        """The spec as an object."""
        return DataSpec.from_json(self.spec)

    @property
    def digest(self) -> str:
        """sha256 (hex) of what defines the data: the files' checksums in order, but not their names."""
        return digest_of([file.checksum for file in self.files])


def digest_of(parts: list[str]) -> str:
    """sha256 (hex) of a list of texts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_manifest(folder: Location, manifest: Manifest) -> None:
    """Put the manifest in the dataset's folder, replacing one that is there.

    Raises:
        StorageError: it could not be written.
    """
    folder.child(MANIFEST).write_bytes(manifest.model_dump_json(by_alias=True).encode())


def read_manifest(folder: Location) -> Manifest | None:
    """The manifest of a dataset's folder; None if there is none.

    Raises:
        DataError: it cannot be read, or a newer Hindcast wrote it.
    """
    location = folder.child(MANIFEST)
    if not location.exists():
        return None
    data = location.read_bytes()
    try:
        version = json.loads(data).get("formatVersion")
        if version != FORMAT_VERSION:
            raise DataError(
                f"{location} has the format version {version!r}, and this Hindcast reads {FORMAT_VERSION}: "
                "update Hindcast"
            )
        return Manifest.model_validate_json(data)
    except (ValueError, AttributeError) as error:
        raise DataError(f"{location} cannot be read: {first_problem(error)}") from error


def first_problem(error: Exception) -> str:
    """The first thing wrong in a stored JSON document, in words."""
    if isinstance(error, ValidationError):
        place = ".".join(map(str, error.errors()[0]["loc"]))
        return f"{place}: {value_problem(error)}"
    return str(error)
