"""What a revision runs: the spec with the platform's defaults and inputs that the revision began with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hindcast.api import OfflineTraining, Resource, course_hash, spec_hash
from hindcast.api.run_policy import RunPolicy
from hindcast.api.status import RunStatus
from hindcast_operator.defaults import Defaults
from hindcast_operator.facts import Facts, ReferenceFacts
from hindcast_operator.manifests import effective_resource, effective_run_policy
from hindcast_operator.names import child_name
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.runs import (
    DEFAULTS_KEY,
    DIGEST_PREFIX,
    active_seconds,
    current_run,
    fixed_fields,
    input_names,
    num_losses,
)
from hindcast_operator.planning.status import Check
from hindcast_operator.times import format_timestamp


@dataclass(frozen=True)
class Revision:
    """What is to run.

    Attributes:
        number: the spec's; the latest run's where the spec is not valid.
        resource: effective; None where the spec is not valid.
        defaults: the platform's, as the revision uses them.
        spec_hash: of the run-defining fields; None where the spec is not valid.
        course_hash: of those that a run does not go on with when they change; None where the spec is not valid.
        drift: SpecDrift, where the spec is no longer what the revision runs.
    """

    number: int
    suspend: bool
    policy: RunPolicy
    resource: Resource | None
    defaults: Defaults
    spec_hash: str | None
    course_hash: str | None
    drift: Check | None


def requested_revision(facts: Facts, defaults: Defaults, runs: Sequence[RunStatus]) -> Revision:
    """The revision that the spec asks for.

    A spec that is not valid leaves its running attempt alone: only a new attempt needs the spec. Its deadlines and
    `suspend` can be read all the same.
    """
    latest = runs[0].revision if runs else 1
    if facts.resource is None or facts.problems:
        drift = Check(True, Reason.INVALID_SPEC, invalid_spec_message(facts)) if runs else None
        policy = effective_run_policy(facts.run_policy, defaults)
        return Revision(latest, facts.suspend and bool(runs), policy, None, defaults, None, None, drift)
    number = max(facts.resource.spec.revision, latest)
    pinned = _pinned(defaults, [run for run in runs if run.revision == number])
    resource = effective_resource(facts.resource, pinned)
    digest, course = spec_hash(facts.resource), course_hash(facts.resource)
    return Revision(
        number=number,
        suspend=resource.spec.suspend,
        policy=resource.spec.run_policy,
        resource=resource,
        defaults=pinned,
        spec_hash=digest,
        course_hash=course,
        drift=_drift(current_run(runs, number), digest, course),
    )


def invalid_spec_message(facts: Facts) -> str:
    """What is wrong with the spec."""
    return "; ".join(facts.problems) or "The spec is not valid."


def _pinned(defaults: Defaults, attempts: Sequence[RunStatus]) -> Defaults:
    """The platform's defaults with those that the revision began with.

    Another storage root would hide the run's checkpoints from its next attempt. The image is pinned once an
    attempt has reported from it; until then a corrected default may repair the run.
    """
    if not attempts:
        return defaults
    used: Mapping[str, Any] = attempts[0].inputs.get(DEFAULTS_KEY, {})
    pinned: dict[str, Any] = {"storage_root": used.get("storageRoot", defaults.storage_root)}
    if any(run.first_report_time for run in attempts):
        cluster = defaults.cluster.model_copy(update={"image": None, "ray_version": None})
        pinned |= {"image": used.get("image"), "ray_version": used.get("rayVersion"), "cluster": cluster}
    return defaults.model_copy(update={name: value for name, value in pinned.items() if value is not None})


def _used(defaults: Defaults) -> dict[str, Any]:
    """The defaults that stay as they are within a revision, for the entry of an attempt."""
    used = {
        "image": defaults.cluster.image or defaults.image,
        "rayVersion": defaults.cluster.ray_version or defaults.ray_version,
        "storageRoot": defaults.storage_root,
    }
    return {name: value for name, value in used.items() if value is not None}


# -- changes of the spec at the same revision ---------------------------------------------------------------


def _drift(run: RunStatus | None, digest: str, course: str) -> Check | None:
    """SpecDrift: run-defining fields have changed, and not only those that may change during a run."""
    if run is None or run.spec_hash == digest or run.course_hash == course:
        return None
    message = (
        f"Run-defining fields have changed since revision {run.revision} started (spec hash {digest}, was "
        f"{run.spec_hash}); its run is not affected. Raise spec.revision to run with the change, or revert it."
    )
    return Check(True, Reason.SPEC_CHANGED, message)


def change_waiting(resource: Resource | None, run: RunStatus | None) -> Check | None:
    """ChangeWaiting: fields that the next attempt takes up have changed since the running one was created.

    Args:
        resource: as the user wrote it; None where it is not valid.
        run: the revision's latest attempt.
    """
    if resource is None or run is None or run.outcome is not None or not run.operational_fields:
        return None
    now = fixed_fields(resource)
    changes = [
        _change(path, now.get(path), run.operational_fields.get(path))
        for path in sorted(now.keys() | run.operational_fields.keys())
        if now.get(path) != run.operational_fields.get(path)
    ]
    if not changes:
        return None
    message = f"{'; '.join(changes)}; attempt {run.attempt} keeps its settings, the change applies from the next one on"
    return Check(True, Reason.CHANGE_WAITS, message)


def _change(path: str, now: Any, before: Any) -> str:
    if any(isinstance(value, str) and value.startswith(DIGEST_PREFIX) for value in (now, before)):
        return f"{path} changed"
    now, before = ("not set" if value is None else value for value in (now, before))
    return f"{path} changed from {before} to {now}"


# -- inputs: awaited before a revision's first attempt, kept for its later ones -----------------------------

_WORST_FIRST = ("Failed", "Missing", "Circular", "Unfinished", "Complete")


def data_ready(facts: Facts, run: RunStatus | None) -> Check | None:
    """DataReady; None for a resource that refers to no other.

    Args:
        facts: what was observed.
        run: the revision's latest attempt: it was given its inputs, whatever has become of them since.
    """
    if run is not None:
        given = sorted(input_names(run))
        message = f"{_list(given, 'was', 'were')} complete when revision {run.revision} started"
        return Check(True, Reason.INPUTS_READY, message) if given else None
    if not facts.references:
        return None
    worst = min(facts.references, key=lambda entry: (_WORST_FIRST.index(entry.state), entry.kind, entry.name))
    if worst.state == "Complete":
        names = sorted(f"{entry.kind}/{entry.name}" for entry in facts.references)
        return Check(True, Reason.INPUTS_READY, f"{_list(names)} complete")
    return Check(False, *_not_ready(f"{facts.kind}/{facts.name}", worst))


def _inputs(facts: Facts, previous: RunStatus | None, defaults: Defaults) -> dict[str, Any]:
    """Inputs for a new attempt's entry: those of the revision's previous attempt, or else the references now."""
    if previous is not None:
        given = {key: previous.inputs[key] for key in input_names(previous)}
    else:
        given = {
            f"{entry.kind}/{entry.name}": entry.input.model_dump(
                mode="json", by_alias=True, exclude_none=True
            )
            for entry in facts.references
            if entry.input is not None
        }
    return {**given, DEFAULTS_KEY: _used(defaults)}


def _not_ready(own: str, reference: ReferenceFacts) -> tuple[Reason, str]:
    name = f"{reference.kind}/{reference.name}"
    if reference.state == "Failed":
        return Reason.DEPENDENCY_FAILED, f"{name} has failed; fix it and raise its spec.revision"
    if reference.state == "Missing":
        return (
            Reason.REFERENCE_MISSING,
            f"{name} does not exist in this namespace; create it or correct the name",
        )
    if reference.state == "Circular":
        return (
            Reason.CIRCULAR_REFERENCE,
            f"{own} and {name} wait for each other; remove one of the references",
        )
    return Reason.REFERENCE_UNFINISHED, f"Waiting for {name} to complete"


def _list(names: Sequence[str], one: str = "is", several: str = "are") -> str:
    return f"{', '.join(names)} {one if len(names) == 1 else several}"


# -- a new attempt ------------------------------------------------------------------------------------------


def new_run(
    facts: Facts, revision: Revision, number: int, previous: RunStatus | None, now: datetime
) -> RunStatus:
    """The entry of an attempt that is about to be created; `previous` is the revision's attempt before it."""
    assert revision.spec_hash is not None, "no attempt without a valid spec"
    taken = _taken(facts, revision)
    if previous is not None:
        taken["initial_learners"] = previous.initial_learners
    return RunStatus(
        revision=revision.number,
        attempt=number,
        ray_job_name=child_name(facts.kind, facts.name, revision.number, number),
        inputs=_inputs(facts, previous, revision.defaults),
        retries=0 if previous is None else num_losses(previous),
        active_seconds=0 if previous is None else active_seconds(previous, now),
        start_time=format_timestamp(now),
        **taken,
    )


def renew_run(facts: Facts, revision: Revision, run: RunStatus) -> RunStatus:
    """The entry of an attempt whose RayJob does not exist yet: it is created from the spec as it is now."""
    if revision.resource is None:
        return run
    taken = _taken(facts, revision)
    if revision.drift is not None:  # the attempt is not created from that spec
        return run.model_copy(update={"operational_fields": taken["operational_fields"]})
    if run.attempt > 1:
        taken["initial_learners"] = run.initial_learners
    inputs = {**run.inputs, DEFAULTS_KEY: _used(revision.defaults)}
    return run.model_copy(update={**taken, "inputs": inputs})


def _taken(facts: Facts, revision: Revision) -> dict[str, Any]:
    """The fields of an attempt's entry that say what it was created with."""
    resource = revision.resource
    assert resource is not None, "no attempt without a valid spec"
    return {
        "spec_hash": revision.spec_hash,
        "course_hash": revision.course_hash,
        "image": resource.spec.cluster.image,
        "initial_learners": resource.spec.learners.replicas
        if isinstance(resource, OfflineTraining)
        else None,
        "operational_fields": {} if facts.resource is None else fixed_fields(facts.resource),
    }
