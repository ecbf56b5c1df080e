"""Locations that a resource reads and writes: the fields that contain them, and relative paths made absolute."""

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.api import OfflineTraining, Resource

_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_BUCKET: Final = re.compile(r"^(s3|gs|gcs|az|abfss?)://")


@dataclass(frozen=True)
class StoragePath:
    """A location in a resource: its field and path; `is_written` if the run writes there."""

    field: str
    path: str
    is_written: bool

    @property
    def is_relative(self) -> bool:
        """True if the path is neither a URI nor a path from the root or the home folder."""
        return not self.path.startswith(("/", "~")) and _SCHEME.match(self.path) is None

    @property
    def is_outside_root(self) -> bool:
        """True if the path is relative and leads out of the folder in which it starts."""
        return self.is_relative and posixpath.normpath(self.path).split("/")[0] == ".."

    @property
    def local_path(self) -> str | None:
        """The path in the pod's file system; None for a relative path or another storage."""
        path = self.path.removeprefix("file://")
        return posixpath.normpath(path) if path.startswith(("/", "~")) else None


def storage_paths(resource: Resource) -> list[StoragePath]:
    """Return all locations that the resource names, in the order of `_LOCATION_PATHS`."""
    locations: list[StoragePath] = []

    def collect(location: StoragePath) -> str:
        locations.append(location)
        return location.path

    _map_locations(resource, collect)
    return locations


def with_absolute_paths(resource: Resource, root: str | None) -> Resource:
    """Return the resource with its relative locations below `<root>/<namespace>`. References are kept as they are.

    Paths that lead out of the root stay relative, and so do all paths if `root` is None; `find_refusals` reports them.
    """
    if root is None:
        return resource
    # Without the namespace, resources of the same name in two namespaces would resume each other's runs.
    namespace = resource.metadata.namespace or "default"

    def below_root(location: StoragePath) -> str:
        if not location.is_relative or location.is_outside_root:
            return location.path
        return join_location(root, namespace, posixpath.normpath(location.path))

    return _map_locations(resource, below_root)


def run_folder(training: OfflineTraining) -> str:
    """Return the run folder of a training, like `hindcast.run.claim.run_folder`, which requires the runtime extra."""
    return join_location(training.spec.checkpoint.path, training.metadata.name, f"r{training.spec.revision}")


def join_location(folder: str, *names: str) -> str:
    """Append names to a folder's location. The query of a URI such as `hdfs://host/x?user=…` stays at the end."""
    # In plain paths and buckets, `?` is part of a name.
    has_query = _SCHEME.match(folder) and not _BUCKET.match(folder)
    base, separator, query = folder.partition("?") if has_query else (folder, "", "")
    return f"{'/'.join((base.rstrip('/'), *names))}{separator}{query}"


_Change = Callable[[StoragePath], str]

_LOCATION_PATHS: Final = {
    "OfflineRecording": ("policy.checkpoint.path", "policy.train.initial_checkpoint", "output.path"),
    "OfflineTraining": ("input.path", "checkpoint.path", "evaluation.offline.input", "initial_checkpoint"),
}
_WRITTEN_FIELDS: Final = ("spec.output.path", "spec.checkpoint.path")


def _map_locations(resource: Resource, change: _Change) -> Resource:
    """Return the resource with every location replaced by the result of `change`."""
    for path in _LOCATION_PATHS[resource.kind]:
        resource = resource.model_copy(
            update={"spec": _change_locations(resource.spec, path.split("."), "spec", change)}
        )
    return resource


def _change_locations(value: Any, attributes: Sequence[str], field: str, change: _Change) -> Any:
    """Return the value of a field of the resource with the locations in it changed.

    Args:
        value: the value of the field.
        attributes: attribute names that lead from the value to a location. Lists on the way are searched completely.
        field: path of the field, for messages.
        change: returns the new location.
    """
    if isinstance(value, list):
        return [
            _change_locations(entry, attributes, f"{field}[{index}]", change)
            for index, entry in enumerate(value)
        ]
    if isinstance(value, str):
        return change(StoragePath(field, value, is_written=field in _WRITTEN_FIELDS))
    attribute, *remaining_attributes = attributes
    if getattr(value, attribute) is None:
        return value
    new_value = _change_locations(
        getattr(value, attribute), remaining_attributes, f"{field}.{to_camel(attribute)}", change
    )
    return value.model_copy(update={attribute: new_value})
