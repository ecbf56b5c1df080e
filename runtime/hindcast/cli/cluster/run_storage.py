"""Reads what a run left on storage: its policy, its results, and the log of each attempt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from hindcast.api import OfflineTraining, Resource, validate_resource
from hindcast.cli.cluster.access import Raw, connect
from hindcast.cli.cluster.target import ClusterResource, is_target, parse_target
from hindcast.errors import SpecError, StorageError, UserError
from hindcast_operator.manifests.storage import join_location, run_folder, with_absolute_paths

if TYPE_CHECKING:
    from hindcast.storage.location import Location

_LOG_FOLDER: Final = "logs"
_ATTEMPT_PATTERN: Final = re.compile(r"-[rt](\d+)-(\d+)\.log$")  # revision and attempt, see `child_name`


def log_path(resource: Resource, job_name: str) -> str:
    """Return the path of an attempt's log.

    Equal to `hindcast.run.claim.log_file`, which requires the runtime extra.

    Args:
        resource: the resource with absolute paths, at the attempt's revision.
        job_name: name of the attempt's RayJob.
    """
    if isinstance(resource, OfflineTraining):
        folder = run_folder(resource)
    else:
        folder = join_location(resource.spec.output.path, "_hindcast")
    return join_location(folder, _LOG_FOLDER, f"{job_name}.log")


def read_stored_log(resource: Resource, job_name: str) -> bytes:
    """Read the log of an attempt after its pods were deleted.

    Args:
        resource: the resource with absolute paths, at the attempt's revision.
        job_name: name of the attempt's RayJob.

    Raises:
        UserError: the log cannot be read from here; the message names its location and how to get it.
    """
    path = log_path(resource, job_name)
    try:
        from hindcast.storage.location import resolve
    except ModuleNotFoundError as error:
        raise UserError(
            f"the pods are gone; the log is at {path}: copy it from there, or install the extra that reads it: "
            "pip install 'hindcast-rl[runtime]'"
        ) from error
    with _add_location_to_errors(f"the pods are gone; the log is at {path}"):
        location = resolve(path)
        if location.exists():
            return location.read_bytes()
    if location.is_local:
        raise UserError(f"the pods are gone; the log is at {path} on {describe_volume(resource, path)}")
    raise UserError(
        f"the pods are gone, and the driver wrote no log to {path}: `hindcast status` shows why it ended"
    )


@contextmanager
def _add_location_to_errors(subject: str) -> Iterator[None]:
    """Begin the message of a StorageError with `subject`, a clause that says where the data are."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{subject}, which cannot be read from here: {error}") from error


def describe_volume(resource: Resource, path: str) -> str:
    """Describe the volume of the cluster that a path belongs to, and how to get a copy of the files at the path."""
    local = path.removeprefix("file://")
    volumes = [
        volume
        for volume in resource.spec.cluster.volumes
        if local.startswith(f"{volume.mount_path.rstrip('/')}/")
    ]
    # As in a pod, the innermost mount counts.
    volume = max(volumes, key=lambda entry: len(entry.mount_path), default=None)
    claim = volume.persistent_volume_claim if volume is not None else None
    name = "a volume of the cluster" if claim is None else f"the claim {claim.claim_name}"
    mount = "" if volume is None else f" (mounted at {volume.mount_path})"
    target, owner = PurePosixPath(local).name, resource.metadata.name
    target = target if target.startswith(owner) else f"{owner}-{target}"
    pod = f"{resource.metadata.namespace or 'default'}/files"
    return (
        f'{name}{mount}: start a pod `files` that mounts it (docs/cluster.md, "Files on a volume"), copy them with '
        f"`kubectl cp {pod}:{local} {target}`"
    )


def read_folder_log(folder: str, attempt: int | None) -> tuple[str, bytes]:
    """Read the log of an attempt from a run folder or a dataset.

    Args:
        folder: the run folder or dataset.
        attempt: number of the attempt, in the latest revision; None for the latest attempt.

    Returns:
        The log's path, and its content.

    Raises:
        UserError: the log does not exist, or the folder cannot be read.
    """
    from hindcast.formats.dataset_folder.manifest import FOLDER
    from hindcast.storage.location import missing_error, resolve

    root = resolve(folder)
    if not root.exists():
        raise missing_error(root)
    logs: dict[tuple[int, int], Location] = {}
    for folder_location in (root.child(_LOG_FOLDER), root.child(FOLDER, _LOG_FOLDER)):
        for entry in folder_location.files():
            if match := _ATTEMPT_PATTERN.search(entry.relative_path):
                logs[int(match[1]), int(match[2])] = entry.location
    if not logs:
        raise UserError(f"{folder} contains no logs: only attempts on a cluster write them")
    revision, latest = max(logs)
    key = (revision, latest if attempt is None else attempt)
    if key not in logs:
        numbers = ", ".join(str(number) for log_revision, number in sorted(logs) if log_revision == revision)
        raise UserError(
            f"{folder} has no log of attempt {attempt}; attempts of revision {revision} with a log: {numbers}"
        )
    return str(logs[key]), logs[key].read_bytes()


def find_on_cluster(
    paths: Sequence[str],
    find_path: Callable[[Raw, ClusterResource], str],
    namespace: str | None,
    context: str | None,
) -> list[str]:
    """Replace each `training/NAME` by the path that `find_path` returns for the resource with this name.

    Args:
        paths: paths and names of resources.
        find_path: `policy_path` or `results_path`.
        namespace: namespace of the resources, see `connect`.
        context: context of the kubeconfig, see `connect`.

    Raises:
        SpecError: a resource does not exist; a name is also a folder here; or a namespace or context is set, but all
            are paths.
        UserError: see `find_path`.
    """
    if not any(map(is_target, paths)):
        if namespace is not None or context is not None:
            verb = "is a path" if len(paths) == 1 else "are paths"
            raise SpecError(
                f"--namespace and --context apply only to training/NAME on a cluster; {', '.join(paths)} {verb}."
            )
        return list(paths)
    targets = {path: parse_target(path) for path in paths if is_target(path)}
    folders = [path for path in targets if Path(path).exists()]
    if folders and namespace is None and context is None:
        raise SpecError(
            f"{folders[0]} may name a resource of the cluster, but is a folder here too: write ./{folders[0]} for the "
            "folder, or set --namespace for the resource."
        )
    cluster = connect(namespace, context)
    return [
        find_path(cluster.read_resource(targets[path]), targets[path]) if path in targets else path
        for path in paths
    ]


def policy_path(document: Raw, target: ClusterResource) -> str:
    """Return the path of a resource's policy: a training's best (else latest) checkpoint, or a recording's dataset.

    Args:
        document: the resource with its status.
        target: name of the resource, for messages.

    Raises:
        UserError: the policy does not exist yet, or cannot be read from here; the message says how to get it.
    """
    status = document.get("status") or {}
    checkpoint = status.get("checkpoint") or {}
    path = checkpoint.get("bestPath") or checkpoint.get("path") or (status.get("output") or {}).get("path")
    if path is None:
        raise _missing_error(document, target, "policy")
    return _require_readable(str(path), document, f"the policy of {target}", "export")


def results_path(document: Raw, target: ClusterResource) -> str:
    """Return the path of the run folder of a training's latest attempt.

    Args:
        document: the resource with its status.
        target: name of the resource, for messages.

    Raises:
        SpecError: the resource is not a training.
        UserError: the run folder does not exist yet, or cannot be read from here; the message says how to get it.
    """
    if target.kind != OfflineTraining.__name__:
        raise SpecError(f"{target} is not a training; compare training/NAME.")
    attempts = attempts_of(document)
    if not attempts:
        raise _missing_error(document, target, "results")
    training = resource_at_attempt(document, attempts[0])
    assert isinstance(training, OfflineTraining)
    return _require_readable(run_folder(training), document, f"the run folder of {target}", "compare")


def attempts_of(document: Raw) -> list[Raw]:
    """Return a resource's attempts, which are the entries of status.runs, newest first."""
    return list((document.get("status") or {}).get("runs") or ())


def resource_at_attempt(document: Raw, attempt: Mapping[str, Any]) -> Resource:
    """Return the resource with the revision and the absolute paths of an attempt."""
    resource = validate_resource({key: value for key, value in document.items() if key != "status"})
    # Only the latest attempt has inputs, and all attempts of a revision have the same.
    defaults = (attempts_of(document)[0].get("inputs") or {}).get("defaults") or {}
    absolute_resource = with_absolute_paths(resource, defaults.get("storageRoot"))
    spec = absolute_resource.spec.model_copy(update={"revision": attempt["revision"]})
    return absolute_resource.model_copy(update={"spec": spec})


def _missing_error(document: Raw, target: ClusterResource, noun: str) -> UserError:
    state = (document.get("status") or {}).get("state") or "Unseen"
    return UserError(
        f"{target} has no {noun} yet: its state is {state}. Run `hindcast status {target}` for the reason."
    )


def _require_readable(path: str, document: Raw, subject: str, verb: str) -> str:
    """Return the path of files of a run if they can be read from here.

    Args:
        path: the path.
        document: the resource with its status.
        subject: what is at the path, for messages.
        verb: what the user does with the files, for messages.

    Raises:
        UserError: the files cannot be read; the message says how to get them.
    """
    from hindcast.storage.location import resolve

    with _add_location_to_errors(f"{subject} is at {path}"):
        location = resolve(path)
        if location.exists():
            return path
    if location.is_local:
        where = describe_volume(validate_resource(document), path)
        raise UserError(f"{subject} is at {path} on {where}, and {verb} the copy")
    raise UserError(
        f"{subject} is no longer at {path}: the run is still in progress, or its folder was deleted"
    )
