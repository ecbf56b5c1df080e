"""Where a run keeps its own files, and whose a folder is: it carries its spec's hash."""

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
"""What is in the folder in addition to a run's own files: locks, attempts and logs."""


def title(resource: OfflineRecording | OfflineTraining) -> str:
    """`Kind/name`."""
    return f"{resource.kind}/{resource.metadata.name}"


def run_folder(resource: OfflineTraining) -> Location:
    """`<checkpoint.path>/<name>/r<revision>`."""
    return resolve(resource.spec.checkpoint.path).child(resource.metadata.name, f"r{resource.spec.revision}")


def state_folder(resource: OfflineRecording | OfflineTraining) -> Location:
    """The run folder of a training, `_hindcast` of a recording's dataset."""
    if isinstance(resource, OfflineTraining):
        return run_folder(resource)
    return resolve(resource.spec.output.path).child(FOLDER)


def log_file(resource: OfflineRecording | OfflineTraining, child: str) -> Location:
    """The log of one attempt on a cluster; `child` is the name of its RayJob."""
    return state_folder(resource).child(LOGS, f"{child}.log")


def claim(state: Location, resource: OfflineRecording | OfflineTraining, has_progress: bool) -> bool:
    """Put the resource's mark into `state`, or find it there.

    Args:
        state: folder of the run's own files (`_hindcast` of a dataset, the run folder of a training).
        resource: the resource that is to fill the folder.
        is_worth_keeping: whether an earlier run left anything there that took work; a run that failed over a
            mistake in its spec did not, and the mended spec takes its place.

    Returns:
        True where an earlier run of this resource left off there.

    Raises:
        OutputConflict: the folder carries another spec's hash.
        DataError: its mark is damaged.
    """
    found = require_owner(state)
    if found is None or _is_of_another(found, resource):
        refuse_other_run(state, resource, has_progress)
        write_owner(state, _mark(resource))
        return False
    if found["specHash"] != spec_hash(resource):  # the rest stays as the run began
        earlier = [*found.get("earlierHashes", ()), found["specHash"]]
        write_owner(state, {**found, "earlierHashes": earlier, "specHash": spec_hash(resource)})
    return True


def is_claimed(state: Location) -> bool:
    """Whether a mark is in `state`."""
    return read_owner(state) is not None


def claimed_hashes(state: Location) -> set[str]:
    """Spec hashes of the run in `state`: the one it has now, and those before `stop` or `evaluation` was changed.

    None where there is no mark.
    """
    found = require_owner(state)
    return {found["specHash"], *found.get("earlierHashes", ())} if found else set()


def refuse_other_run(
    state: Location, resource: OfflineRecording | OfflineTraining, has_progress: bool
) -> None:
    """Refuse a folder that `claim` would refuse, without changing anything.

    Raises:
        OutputConflict: the folder carries another spec's hash.
    """
    found = require_owner(state)
    # The journal of an application's log may hold what is nowhere else.
    if found and _is_of_another(found, resource) and (has_progress or found["resource"] == LOG_RESOURCE):
        raise OutputConflict(_conflict(state, resource, found))


def is_claimed_by_another(state: Location, resource: OfflineRecording | OfflineTraining) -> bool:
    """Whether `state` carries the hash of another spec, and not only of one that this one extends."""
    found = require_owner(state)
    return found is not None and _is_of_another(found, resource)


def has_foreign_files(folder: Location, state: Location) -> bool:
    """Whether files are in a dataset's folder that no run of Hindcast made; `state` is its own folder in there."""
    if any(entry.relative_path not in BOOKKEEPING_ENTRIES for entry in state.list()):
        return False
    return any(entry.relative_path != state.name for entry in folder.list())


def first_learners(state: Location, resource: OfflineTraining) -> int:
    """Learners when the run in `state` started; those of the resource where none has started.

    They fix the global batch, which must not change when the number of learners does.
    """
    found = require_owner(state)
    if found is None or _is_of_another(found, resource):
        return resource.spec.learners.replicas
    return int(found["spec"]["spec"].get("learners", {}).get("replicas", 1))


def _is_of_another(found: dict[str, Any], resource: OfflineRecording | OfflineTraining) -> bool:
    return found["specHash"] != spec_hash(resource) and _course(found) != course_hash(resource)


def _course(found: dict[str, Any]) -> str | None:
    earlier = _earlier(found)
    return None if earlier is None else course_hash(earlier)


def _earlier(found: dict[str, Any]) -> OfflineRecording | OfflineTraining | None:
    """The resource in a mark; None where this version cannot read it."""
    try:
        return validate_resource(found["spec"])
    except SpecError:
        return None


def _mark(resource: OfflineRecording | OfflineTraining) -> dict[str, Any]:
    return {
        "resource": title(resource),
        "revision": resource.spec.revision,
        "specHash": spec_hash(resource),
        "spec": resource.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"status"}),
    }


def _conflict(state: Location, resource: OfflineRecording | OfflineTraining, found: dict[str, Any]) -> str:
    way_out = (
        "give another output.path, or set output.onExisting: Replace"
        if resource.kind == "OfflineRecording"
        else "raise spec.revision, or give another checkpoint.path"
    )
    if found["resource"] != title(resource):
        return f"{state} holds {found['resource']}, and this is {title(resource)}: {way_out}."
    earlier = _earlier(found)
    changes = differences(earlier, resource) if type(earlier) is type(resource) else ""
    changes = changes or f"its hash was {found['specHash']} and is {spec_hash(resource)}"
    return f"{state} holds {title(resource)} as it was before the spec changed ({changes}): undo that, {way_out}."
