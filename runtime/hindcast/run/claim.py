"""Locations of a run's own files, and the owner record that says which run a folder belongs to."""

from __future__ import annotations

from typing import Any

from hindcast.api import OfflineRecording, OfflineTraining, course_hash, spec_hash, validate_resource
from hindcast.api.differences import differences
from hindcast.errors import OutputConflict, SpecError
from hindcast.formats.dataset_folder.folder_owner import LOG_RESOURCE, read_owner, require_owner, write_owner
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.storage.lease import LOCK
from hindcast.storage.location import Location, resolve

ATTEMPTS = "attempts"
LOGS = "logs"
CHECKPOINTS_FOLDER = "checkpoints"
BOOKKEEPING_ENTRIES = (LOCK, ATTEMPTS, LOGS)
"""Names in a run's folder that are not results of the run: lock, attempts and logs."""


def title(resource: OfflineRecording | OfflineTraining) -> str:
    """Return `Kind/name`."""
    return f"{resource.kind}/{resource.metadata.name}"


def run_folder(resource: OfflineTraining) -> Location:
    """Return `<checkpoint.path>/<name>/r<revision>`."""
    return resolve(resource.spec.checkpoint.path).child(resource.metadata.name, f"r{resource.spec.revision}")


def state_folder(resource: OfflineRecording | OfflineTraining) -> Location:
    """Return the run folder of a training, or `_hindcast` in a recording's dataset."""
    if isinstance(resource, OfflineTraining):
        return run_folder(resource)
    return resolve(resource.spec.output.path).child(FOLDER)


def log_file(resource: OfflineRecording | OfflineTraining, ray_job_name: str) -> Location:
    """Return the log file of one attempt on a cluster; `ray_job_name` names the attempt."""
    return state_folder(resource).child(LOGS, f"{ray_job_name}.log")


def claim(state: Location, resource: OfflineRecording | OfflineTraining, has_progress: bool) -> bool:
    """Make the resource the owner of `state`, unless it already is.

    Args:
        state: folder of the run's own files (`_hindcast` of a dataset, the run folder of a training).
        resource: resource that will fill the folder.
        has_progress: an earlier run left results in the folder. A run that failed because of its spec has left no
            results, so the corrected spec may take its place.

    Returns:
        True if an earlier run of this resource started there.

    Raises:
        OutputConflict: the folder contains results of a run with another course (see `course_hash`), or it belongs to
            an `EpisodeWriter`.
        DataError: the owner record is damaged.
    """
    owner = require_owner(state)
    if owner is None or _belongs_to_other_run(owner, resource):
        refuse_other_run(state, resource, has_progress)
        write_owner(state, _make_owner(resource))
        return False
    if owner["specHash"] != spec_hash(resource):  # the record keeps the spec that the run started with
        # Checkpoints from before the change contain the earlier hashes.
        earlier_hashes = [*owner.get("earlierHashes", ()), owner["specHash"]]
        write_owner(state, {**owner, "earlierHashes": earlier_hashes, "specHash": spec_hash(resource)})
    return True


def is_claimed(state: Location) -> bool:
    """Return True if `state` has an owner."""
    return read_owner(state) is not None


def claimed_hashes(state: Location) -> set[str]:
    """Return the spec hashes of the run that owns `state`: the current one, and those before an allowed change.

    Empty if there is no owner.
    """
    owner = require_owner(state)
    return {owner["specHash"], *owner.get("earlierHashes", ())} if owner else set()


def refuse_other_run(
    state: Location, resource: OfflineRecording | OfflineTraining, has_progress: bool
) -> None:
    """Refuse a folder that `claim` would refuse, without changing anything.

    Raises:
        OutputConflict, DataError: see `claim`.
    """
    owner = require_owner(state)
    # LOG_RESOURCE means that an EpisodeWriter owns the folder; its journal may have episodes that exist nowhere else.
    if (
        owner
        and _belongs_to_other_run(owner, resource)
        and (has_progress or owner["resource"] == LOG_RESOURCE)
    ):
        raise OutputConflict(_conflict_message(state, resource, owner))


def is_claimed_by_another(state: Location, resource: OfflineRecording | OfflineTraining) -> bool:
    """Return True if `state` belongs to a run with another course (see `course_hash`), or to an `EpisodeWriter`."""
    owner = require_owner(state)
    return owner is not None and _belongs_to_other_run(owner, resource)


def has_foreign_files(folder: Location, state: Location) -> bool:
    """Return True if Hindcast has recorded nothing in a dataset's folder yet, but the folder contains files.

    False once `state`, Hindcast's own folder in it, contains an owner record or results: the other files then count as
    Hindcast's.
    """
    if any(entry.relative_path not in BOOKKEEPING_ENTRIES for entry in state.list()):
        return False
    return any(entry.relative_path != state.name for entry in folder.list())


def initial_num_learners(state: Location, resource: OfflineTraining) -> int:
    """Return the number of learners when the run in `state` started.

    If the resource's run has not started there, return the resource's number.
    """
    # The initial number determines the global batch, which must not change with the number of learners.
    owner = require_owner(state)
    if owner is None or _belongs_to_other_run(owner, resource):
        return resource.spec.learners.replicas
    return int(owner["spec"]["spec"].get("learners", {}).get("replicas", 1))


def _belongs_to_other_run(owner: dict[str, Any], resource: OfflineRecording | OfflineTraining) -> bool:
    # The course hash omits what may change without a new revision: `stop`, and all of `evaluation` except the fields
    # that determine the held-out episodes.
    return owner["specHash"] != spec_hash(resource) and _owner_course_hash(owner) != course_hash(resource)


def _owner_course_hash(owner: dict[str, Any]) -> str | None:
    resource = _owner_resource(owner)
    return None if resource is None else course_hash(resource)


def _owner_resource(owner: dict[str, Any]) -> OfflineRecording | OfflineTraining | None:
    """Return the resource in an owner record, or None if this version cannot read it."""
    try:
        return validate_resource(owner["spec"])
    except SpecError:
        return None


def _make_owner(resource: OfflineRecording | OfflineTraining) -> dict[str, Any]:
    return {
        "resource": title(resource),
        "revision": resource.spec.revision,
        "specHash": spec_hash(resource),
        "spec": resource.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"status"}),
    }


def _conflict_message(
    state: Location, resource: OfflineRecording | OfflineTraining, owner: dict[str, Any]
) -> str:
    remedy = (
        "set another output.path, or output.onExisting: Replace"
        if resource.kind == "OfflineRecording"
        else "raise spec.revision, or set another checkpoint.path"
    )
    if owner["resource"] != title(resource):
        return f"{state} belongs to {owner['resource']}, not to {title(resource)}: {remedy}."
    previous = _owner_resource(owner)
    changes = differences(previous, resource) if type(previous) is type(resource) else ""
    changes = changes or f"its hash was {owner['specHash']} and is {spec_hash(resource)}"
    return (
        f"{state} holds {title(resource)} as it was before the spec changed ({changes}): revert the change, "
        f"{remedy}."
    )
