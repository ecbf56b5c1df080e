"""What a run left on storage: its policy, and the log of each attempt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from hindcast.api import OfflineTraining, Resource, validate_resource
from hindcast.cli.cluster.access import Raw
from hindcast.cli.cluster.target import ClusterResource
from hindcast.errors import StorageError, UserError
from hindcast_operator.manifests.storage import join_location, run_folder

if TYPE_CHECKING:
    from hindcast.storage.location import Location

_LOGS: Final = "logs"
_ATTEMPT: Final = re.compile(r"-[rt](\d+)-(\d+)\.log$")


def log_path(resource: Resource, child: str) -> str:
    """Path of an attempt's log: `hindcast.run.claim.log_file` without the runtime extra.

    Args:
        resource: with absolute paths, at the attempt's revision.
        child: the attempt's RayJob.
    """
    if isinstance(resource, OfflineTraining):
        folder = run_folder(resource)
    else:
        folder = join_location(resource.spec.output.path, "_hindcast")
    return join_location(folder, _LOGS, f"{child}.log")


def stored_log(resource: Resource, child: str) -> bytes:
    """The log of an attempt whose pods are gone.

    Args:
        resource: with absolute paths, at the attempt's revision.
        child: the attempt's RayJob.

    Raises:
        UserError: it cannot be read from here; the message says where it is and how to get it.
    """
    path = log_path(resource, child)
    try:
        from hindcast.storage.location import resolve
    except ModuleNotFoundError as error:
        raise UserError(
            f"the pods are gone; the log is at {path}: fetch it from there, or install the extra that reads it: "
            "pip install 'hindcast-rl[runtime]'"
        ) from error
    with _reading(f"the pods are gone; the log is at {path}"):
        location = resolve(path)
        if location.exists():
            return location.read_bytes()
    if location.is_local:
        raise UserError(f"the pods are gone; the log is at {path} on {volume_of(resource, path)}")
    raise UserError(f"the pods are gone and there is no log at {path}: the driver had not written one yet")


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """What storage refuses or fails, with where it is that was to be read."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{where}, which cannot be read from here: {error}") from error


def volume_of(resource: Resource, path: str) -> str:
    """Which volume of the cluster a path belongs to, and how to get at it."""
    local = path.removeprefix("file://")
    mounted = [
        volume
        for volume in resource.spec.cluster.volumes
        if local.startswith(f"{volume.mount_path.rstrip('/')}/")
    ]
    volume = max(mounted, key=lambda entry: len(entry.mount_path), default=None)
    claim = volume.persistent_volume_claim if volume is not None else None
    if volume is None or claim is None:
        return "a volume of the cluster: read it from a pod that mounts the same volume there"
    return f"the claim {claim.claim_name} (mounted at {volume.mount_path}): read it from a pod that mounts that claim"


def folder_log(folder: str, attempt: int | None) -> tuple[str, bytes]:
    """The latest log in a run folder or a dataset, or that of an attempt of its latest revision; with its path.

    Raises:
        UserError: there is none, or the folder cannot be read.
    """
    from hindcast.formats.dataset_folder.manifest import FOLDER
    from hindcast.storage.location import missing_error, resolve

    root = resolve(folder)
    if not root.exists():
        raise missing_error(root)
    found: dict[tuple[int, int], Location] = {}
    for place in (root.child(_LOGS), root.child(FOLDER, _LOGS)):
        for entry in place.files():
            if match := _ATTEMPT.search(entry.relative_path):
                found[int(match[1]), int(match[2])] = entry.location
    if not found:
        raise UserError(f"{folder} contains no logs: only attempts on a cluster write them")
    revision, latest = max(found)
    wanted = (revision, latest if attempt is None else attempt)
    if wanted not in found:
        known = ", ".join(str(number) for own, number in sorted(found) if own == revision)
        raise UserError(
            f"{folder} has no log of attempt {attempt}; of revision {revision} there are: {known}"
        )
    return str(found[wanted]), found[wanted].read_bytes()


def stored_policy(found: Raw, target: ClusterResource) -> str:
    """Path of a training's best checkpoint, else its latest; of a recording's dataset.

    Args:
        found: the resource, with its status.

    Raises:
        UserError: it does not exist yet, or cannot be read from here; the message says where it is and how to get it.
    """
    from hindcast.storage.location import resolve

    status = found.get("status") or {}
    checkpoint = status.get("checkpoint") or {}
    path = checkpoint.get("bestPath") or checkpoint.get("path") or (status.get("output") or {}).get("path")
    if path is None:
        raise UserError(
            f"{target} has no policy yet, it is {status.get('state') or 'not seen by the operator'}: "
            f"`hindcast status {target}` says why."
        )
    with _reading(f"the policy of {target} is at {path}"):
        location = resolve(path)
        if location.exists():
            return str(path)
    if location.is_local:
        where = volume_of(validate_resource(found), path)
        raise UserError(f"the policy of {target} is at {path} on {where}, then export the copy")
    raise UserError(
        f"the policy of {target} is no longer at {path}: the run is still in progress, or its folder was deleted"
    )
