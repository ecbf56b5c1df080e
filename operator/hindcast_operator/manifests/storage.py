"""Where a resource reads and writes: which fields are locations, and what relative ones mean on a cluster."""

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hindcast.api import OfflineRecording, Resource
from hindcast.api.recording import OfflineRecordingSpec
from hindcast.api.training import OfflineTrainingSpec

_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class StoragePath:
    """A location in a resource: its field, and whether the run writes there."""

    field: str
    path: str
    written: bool

    @property
    def relative(self) -> bool:
        """Whether it is neither a URI nor a path from the root or the home folder."""
        return not self.path.startswith(("/", "~")) and _SCHEME.match(self.path) is None

    @property
    def leaves_root(self) -> bool:
        """Whether it is a relative path that leads out of the folder that it starts in."""
        return self.relative and posixpath.normpath(self.path).split("/")[0] == ".."

    @property
    def local(self) -> str | None:
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

    Resources of one name in two namespaces are two: neither finds the other's work as its own. A query of the
    root (`s3://bucket/x?region=…`) stays at the end. Paths that lead out of the root stay relative, as all do
    without a root; `refusals` says so.
    """
    if root is None:
        return resource
    base, mark, query = root.partition("?")
    base = f"{base.rstrip('/')}/{resource.metadata.namespace or 'default'}"

    def below_root(location: StoragePath) -> str:
        if not location.relative or location.leaves_root:
            return location.path
        return f"{base}/{posixpath.normpath(location.path)}{mark}{query}"

    return _map(resource, below_root)


_Change = Callable[[StoragePath], str]


def _map(resource: Resource, change: _Change) -> Resource:
    if isinstance(resource, OfflineRecording):
        return resource.model_copy(update={"spec": _map_recording(resource.spec, change)})
    return resource.model_copy(update={"spec": _map_training(resource.spec, change)})


def _map_recording(spec: OfflineRecordingSpec, change: _Change) -> OfflineRecordingSpec:
    policy, checkpoint = spec.policy, spec.policy.checkpoint
    if checkpoint is not None:
        path = change(StoragePath("spec.policy.checkpoint.path", checkpoint.path, written=False))
        policy = policy.model_copy(update={"checkpoint": checkpoint.model_copy(update={"path": path})})
    if policy.train is not None and policy.train.initial_checkpoint is not None:
        given = policy.train.initial_checkpoint
        path = change(StoragePath("spec.policy.train.initialCheckpoint", given, written=False))
        policy = policy.model_copy(
            update={"train": policy.train.model_copy(update={"initial_checkpoint": path})}
        )
    path = change(StoragePath("spec.output.path", spec.output.path, written=True))
    return spec.model_copy(update={"policy": policy, "output": spec.output.model_copy(update={"path": path})})


def _map_training(spec: OfflineTrainingSpec, change: _Change) -> OfflineTrainingSpec:
    sources = []
    for index, source in enumerate(spec.input):
        if source.path is None:
            sources.append(source)
            continue
        path = change(StoragePath(f"spec.input[{index}].path", source.path, written=False))
        sources.append(source.model_copy(update={"path": path}))
    path = change(StoragePath("spec.checkpoint.path", spec.checkpoint.path, written=True))
    evaluation, offline = spec.evaluation, spec.offline
    if evaluation is not None and offline is not None and offline.input is not None:
        own = [
            change(StoragePath(f"spec.evaluation.offline.input[{index}]", each, written=False))
            for index, each in enumerate(offline.input)
        ]
        evaluation = evaluation.model_copy(update={"offline": offline.model_copy(update={"input": own})})
    initial = spec.initial_checkpoint
    if initial is not None:
        initial = change(StoragePath("spec.initialCheckpoint", initial, written=False))
    return spec.model_copy(
        update={
            "input": sources,
            "checkpoint": spec.checkpoint.model_copy(update={"path": path}),
            "evaluation": evaluation,
            "initial_checkpoint": initial,
        }
    )
