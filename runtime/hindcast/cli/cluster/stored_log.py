"""The log that an attempt left on storage: in the run folder of a training, in `_hindcast` of a dataset."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hindcast.api import OfflineTraining, Resource
from hindcast.errors import StorageError, UserError

if TYPE_CHECKING:
    from hindcast.storage.location import Location

_LOGS: Final = "logs"
_ATTEMPT: Final = re.compile(r"-[rt](\d+)-(\d+)\.log$")


def log_path(resource: Resource, child: str) -> str:
    """Where an attempt's log lies, as `hindcast.run.folders.log_file`, but without the runtime extra.

    Args:
        resource: with absolute paths, at the attempt's revision.
        child: the attempt's RayJob.
    """
    spec = resource.spec
    if isinstance(resource, OfflineTraining):
        folder = f"{resource.metadata.name}/r{spec.revision}"
        path = resource.spec.checkpoint.path
    else:
        folder, path = "_hindcast", resource.spec.output.path
    base, mark, query = path.partition("?")
    return f"{base.rstrip('/')}/{folder}/{_LOGS}/{child}.log{mark}{query}"


def stored_log(resource: Resource, child: str) -> bytes:
    """The log of an attempt whose pods are gone.

    Args:
        resource: with absolute paths, at the attempt's revision.
        child: the attempt's RayJob.

    Raises:
        UserError: it cannot be read from here; the sentence says where it lies and how to get it.
    """
    path = log_path(resource, child)
    try:
        from hindcast.storage.location import resolve
    except ModuleNotFoundError as error:
        raise UserError(
            f"the pods are gone; the log lies at {path}: get it from there, or install what can read it: "
            "pip install 'hindcast-rl[runtime]'"
        ) from error
    try:
        location = resolve(path)
        if location.exists():
            return location.read_bytes()
    except StorageError as error:
        raise StorageError(
            f"the pods are gone; the log lies at {path}, which cannot be read from here: {error}"
        ) from error
    if location.is_local:
        raise UserError(f"the pods are gone; the log lies at {path} on {volume_of(resource, path)}")
    raise UserError(f"the pods are gone and there is no log at {path}: the driver had not begun to write one")


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
    from hindcast.storage.location import missing, resolve

    root = resolve(folder)
    if not root.exists():
        raise missing(root)
    found: dict[tuple[int, int], Location] = {}
    for place in (root.child(_LOGS), root.child(FOLDER, _LOGS)):
        for entry in place.files():
            if match := _ATTEMPT.search(entry.relative):
                found[int(match[1]), int(match[2])] = entry.location
    if not found:
        raise UserError(f"{folder} holds no logs: only attempts on a cluster leave one")
    revision, latest = max(found)
    wanted = (revision, latest if attempt is None else attempt)
    if wanted not in found:
        raise UserError(f"{folder} holds no log of attempt {attempt}{_known(found, revision)}")
    return str(found[wanted]), found[wanted].read_bytes()


def _known(found: dict[tuple[int, int], Any], revision: int) -> str:
    numbers = sorted(number for own, number in found if own == revision)
    return f"; of revision {revision} there are: {', '.join(map(str, numbers))}"
