"""Where a resource reads and writes: which fields are locations, and what relative ones mean on a cluster."""

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
    """A location in a resource: its field, and whether the run writes there."""

    field: str
    path: str
    is_written: bool

    @property
    def is_relative(self) -> bool:
        """Whether it is neither a URI nor a path from the root or the home folder."""
        return not self.path.startswith(("/", "~")) and _SCHEME.match(self.path) is None

    @property
    def leaves_root(self) -> bool:
        """Whether it is a relative path that leads out of the folder that it starts in."""
        return self.is_relative and posixpath.normpath(self.path).split("/")[0] == ".."

    @property
    def local_path(self) -> str | None:
        """The path in the pod's own file system; None of any other."""
        path = self.path.removeprefix("file://")
        return posixpath.normpath(path) if path.startswith(("/", "~")) else None


def storage_paths(resource: Resource) -> list[StoragePath]:
    """All locations that the resource names, in the order of its fields."""
    found: list[StoragePath] = []

    def collect(location: StoragePath) -> str:
        found.append(location)
        return location.path

    _map(resource, collect)
    return found


def with_absolute_paths(resource: Resource, root: str | None) -> Resource:
    """The resource with its relative locations below `<root>/<namespace>`; references to other resources stay.

    Resources of one name in two namespaces are two: neither finds the other's work as its own. Paths that lead out
    of the root stay relative, as all do without a root; `refusals` says so.
    """
    if root is None:
        return resource
    namespace = resource.metadata.namespace or "default"

    def below_root(location: StoragePath) -> str:
        if not location.is_relative or location.leaves_root:
            return location.path
        return join_location(root, namespace, posixpath.normpath(location.path))

    return _map(resource, below_root)


def run_folder(training: OfflineTraining) -> str:
    """The run folder of a training: `hindcast.run.claim.run_folder` without the runtime extra."""
    return join_location(training.spec.checkpoint.path, training.metadata.name, f"r{training.spec.revision}")


def join_location(folder: str, *names: str) -> str:
    """What is below a folder; a query of its URI (`hdfs://host/x?user=…`) stays at the end.

    In plain paths and buckets, `?` is part of a name.
    """
    has_query = _SCHEME.match(folder) and not _BUCKET.match(folder)
    base, mark, query = folder.partition("?") if has_query else (folder, "", "")
    return f"{'/'.join((base.rstrip('/'), *names))}{mark}{query}"


_Change = Callable[[StoragePath], str]

_LOCATIONS: Final = {
    "OfflineRecording": ("policy.checkpoint.path", "policy.train.initial_checkpoint", "output.path"),
    "OfflineTraining": ("input.path", "checkpoint.path", "evaluation.offline.input", "initial_checkpoint"),
}
_WRITTEN: Final = ("spec.output.path", "spec.checkpoint.path")


def _map(resource: Resource, change: _Change) -> Resource:
    """The resource with its locations changed."""
    for steps in _LOCATIONS[resource.kind]:
        resource = resource.model_copy(
            update={"spec": _changed(resource.spec, steps.split("."), "spec", change)}
        )
    return resource


def _changed(part: Any, steps: Sequence[str], field: str, change: _Change) -> Any:
    """A part of the resource, whose field is `field`, with the locations changed that are `steps` below it."""
    if isinstance(part, list):
        return [_changed(each, steps, f"{field}[{index}]", change) for index, each in enumerate(part)]
    if isinstance(part, str):
        return change(StoragePath(field, part, is_written=field in _WRITTEN))
    step, *below = steps
    if getattr(part, step) is None:
        return part
    changed = _changed(getattr(part, step), below, f"{field}.{to_camel(step)}", change)
    return part.model_copy(update={step: changed})
