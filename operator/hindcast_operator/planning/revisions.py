"""Revisions: the spec with the platform's defaults and the inputs that the revision began with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from hindcast.api import OfflineTraining, Resource, course_hash, spec_hash
from hindcast.api.run_policy import RunPolicy
from hindcast.api.status import CheckpointStatus, ProgressStatus, RunStatus
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
    deferred_fields,
    input_names,
    num_losses,
)
from hindcast_operator.planning.status import Check, read_status
from hindcast_operator.times import format_timestamp

_ACCOUNT_KEY: Final = "serviceAccountName"
_PINNED_KEY: Final = "isPinned"


@dataclass(frozen=True)
class Revision:
    """The revision to run.

    Attributes:
        number: the spec's revision, or that of the latest attempt if it is higher or the spec is not valid; at least 1.
        suspend: `spec.suspend`: the run is to be suspended. False if the spec is not valid and there is no attempt yet.
        policy: deadlines and retries, with the platform's defaults.
        resource: the result of `manifests.effective_resource`; None if the spec is not valid.
        defaults: the platform's defaults, with the values that stay fixed within the revision.
        spec_hash: hash of the run-defining fields; None if the spec is not valid.
        course_hash: hash of those run-defining fields that may not change during a run; None if the spec is not valid.
        drift: the condition SpecDrift if the spec is not valid any more, or differs from what the revision runs; else
            None.
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
    """Return the revision that the spec asks for.

    A spec that is not valid does not affect the running attempt, except for its `suspend` and `runPolicy`, which can
    still be read. Only a new attempt needs the other fields.

    Args:
        facts: the facts about the resource.
        defaults: the platform's defaults.
        runs: the history, newest first.
    """
    latest_revision = runs[0].revision if runs else 1
    if facts.resource is None or facts.problems:
        drift = Check(True, Reason.INVALID_SPEC, invalid_spec_message(facts)) if runs else None
        policy = effective_run_policy(facts.run_policy, defaults)
        # Without an attempt there is nothing to suspend, and the status has to name the problem of the spec.
        return Revision(
            latest_revision, facts.suspend and bool(runs), policy, None, defaults, None, None, drift
        )
    number = max(facts.resource.spec.revision, latest_revision)
    pinned_defaults = _pin_defaults(defaults, current_run(runs, number))
    resource = effective_resource(facts.resource, pinned_defaults)
    digest, course = spec_hash(facts.resource), course_hash(facts.resource)
    return Revision(
        number=number,
        suspend=resource.spec.suspend,
        policy=resource.spec.run_policy,
        resource=resource,
        defaults=pinned_defaults,
        spec_hash=digest,
        course_hash=course,
        drift=_check_drift(current_run(runs, number), digest, course),
    )


def invalid_spec_message(facts: Facts) -> str:
    """Describe why the spec is not valid."""
    return "; ".join(facts.problems) or "The spec is not valid."


def created_account(run: RunStatus) -> str | None:
    """Return the ServiceAccount that the user or the platform named when the attempt was created, or None."""
    platform_account: str | None = run.inputs.get(DEFAULTS_KEY, {}).get(_ACCOUNT_KEY)
    return run.operational_fields.get("spec.cluster.serviceAccountName") or platform_account


def _pin_defaults(defaults: Defaults, run: RunStatus | None) -> Defaults:
    """Return the platform's defaults, some of them as the latest of a revision's attempts used them.

    These are the storage root and, once an attempt has reported, also the image and its Ray version.

    Args:
        defaults: the platform's current defaults.
        run: entry of the revision's latest attempt; if it is None, `defaults` is returned.
    """
    if run is None:
        return defaults
    # Another storage root would hide the run's checkpoints from its next attempt.
    used_defaults: Mapping[str, Any] = run.inputs.get(DEFAULTS_KEY, {})
    pins: dict[str, Any] = {"storage_root": used_defaults.get("storageRoot", defaults.storage_root)}
    # Until an attempt has reported from the image, a corrected default may repair the run.
    if _is_pinned(run):
        cluster = defaults.cluster.model_copy(update={"image": None, "ray_version": None})
        pins |= {
            "image": used_defaults.get("image"),
            "ray_version": used_defaults.get("rayVersion"),
            "cluster": cluster,
        }
    return defaults.model_copy(update={name: value for name, value in pins.items() if value is not None})


def _is_pinned(run: RunStatus) -> bool:
    """Return True if the attempt or an earlier one of its revision has reported from the image."""
    return run.first_report_time is not None or bool(run.inputs.get(DEFAULTS_KEY, {}).get(_PINNED_KEY))


def _defaults_to_store(defaults: Defaults, *, is_pinned: bool) -> dict[str, Any]:
    """Return the defaults of an attempt that are needed later: the value of `DEFAULTS_KEY` in `inputs`.

    Args:
        defaults: the revision's defaults.
        is_pinned: an earlier attempt of the revision has reported. The entry of that attempt may be dropped.
    """
    values = {
        "image": defaults.cluster.image or defaults.image,
        "rayVersion": defaults.cluster.ray_version or defaults.ray_version,
        "storageRoot": defaults.storage_root,
        _ACCOUNT_KEY: defaults.cluster.service_account_name,
        _PINNED_KEY: is_pinned or None,
    }
    return {name: value for name, value in values.items() if value is not None}


# -- changes of the spec at the same revision ---------------------------------------------------------------


def _check_drift(run: RunStatus | None, digest: str, course: str) -> Check | None:
    """Return the condition SpecDrift if fields that may not change during a run have changed, else None."""
    if run is None or run.spec_hash == digest or run.course_hash == course:
        return None
    message = (
        f"Run-defining fields have changed since revision {run.revision} started (spec hash {digest}, was "
        f"{run.spec_hash}); its run is not affected. Raise spec.revision to run with the change, or revert it."
    )
    return Check(True, Reason.SPEC_CHANGED, message)


def check_change_waiting(resource: Resource | None, run: RunStatus | None) -> Check | None:
    """Return the condition ChangeWaiting if `deferred_fields` have changed since the running attempt was created.

    None if they have not, or if no attempt is running.

    Args:
        resource: the resource as the user wrote it; None if it is not valid.
        run: the revision's latest attempt.
    """
    if resource is None or run is None or run.outcome is not None or not run.operational_fields:
        return None
    current_fields = deferred_fields(resource)
    changes = [
        _describe_change(path, current_fields.get(path), run.operational_fields.get(path))
        for path in sorted(current_fields.keys() | run.operational_fields.keys())
        if current_fields.get(path) != run.operational_fields.get(path)
    ]
    if not changes:
        return None
    message = f"{'; '.join(changes)}; attempt {run.attempt} keeps its settings, the change applies from the next one on"
    return Check(True, Reason.CHANGE_WAITS, message)


def _describe_change(path: str, new: Any, old: Any) -> str:
    if any(isinstance(value, str) and value.startswith(DIGEST_PREFIX) for value in (new, old)):
        return f"{path} changed"
    new, old = ("not set" if value is None else value for value in (new, old))
    return f"{path} changed from {old} to {new}"


# -- inputs: awaited before a revision's first attempt, unchanged for its later ones ------------------------

_STATES_WORST_FIRST = ("Failed", "Missing", "Circular", "Unfinished", "Complete")


def check_data_ready(facts: Facts, run: RunStatus | None) -> Check | None:
    """Return the condition DataReady, or None if the resource refers to no other resource.

    Args:
        facts: the facts about the resource.
        run: the revision's latest attempt, or None. An attempt's inputs are used again, so later changes of the
            references do not count.
    """
    if run is not None:
        input_keys = sorted(input_names(run))
        message = f"{_join_names(input_keys, 'was', 'were')} complete when revision {run.revision} started"
        return Check(True, Reason.INPUTS_READY, message) if input_keys else None
    if not facts.references:
        return None
    worst = min(
        facts.references, key=lambda entry: (_STATES_WORST_FIRST.index(entry.state), entry.kind, entry.name)
    )
    if worst.state == "Complete":
        names = sorted(f"{entry.kind}/{entry.name}" for entry in facts.references)
        return Check(True, Reason.INPUTS_READY, f"{_join_names(names)} complete")
    return Check(False, *_explain_not_ready(worst))


def _inputs_of_new_run(facts: Facts, previous: RunStatus | None, defaults: Defaults) -> dict[str, Any]:
    """Return `inputs` for a new attempt's entry: of the previous attempt or the references, and the defaults."""
    if previous is not None:
        inputs = {key: previous.inputs[key] for key in input_names(previous)}
    else:
        inputs = {
            f"{entry.kind}/{entry.name}": entry.input.model_dump(
                mode="json", by_alias=True, exclude_none=True
            )
            for entry in facts.references
            if entry.input is not None
        }
    is_pinned = previous is not None and _is_pinned(previous)
    return {**inputs, DEFAULTS_KEY: _defaults_to_store(defaults, is_pinned=is_pinned)}


def _explain_not_ready(reference: ReferenceFacts) -> tuple[Reason, str]:
    name = f"{reference.kind}/{reference.name}"
    if reference.state == "Failed":
        return Reason.DEPENDENCY_FAILED, f"{name} has failed; fix it and raise its spec.revision"
    if reference.state == "Missing":
        return (
            Reason.REFERENCE_MISSING,
            f"{name} does not exist in this namespace; create it or correct the name",
        )
    if reference.state == "Circular":
        text = f"{' → '.join(reference.ring)}: each of these resources waits for the next one"
        return Reason.CIRCULAR_REFERENCE, f"{text}; remove one of the references"
    return Reason.REFERENCE_UNFINISHED, f"Waiting for {name} to complete"


def _join_names(names: Sequence[str], singular: str = "is", plural: str = "are") -> str:
    return f"{', '.join(names)} {singular if len(names) == 1 else plural}"


# -- a new attempt ------------------------------------------------------------------------------------------


def new_run(
    facts: Facts, revision: Revision, number: int, previous: RunStatus | None, now: datetime
) -> RunStatus:
    """Return the entry of an attempt that is about to be created.

    Args:
        facts: the facts about the resource.
        revision: the revision to run.
        number: number of the attempt in the revision, from 1.
        previous: entry of the revision's previous attempt; None for the first one.
        now: start time of the new attempt.
    """
    assert revision.spec_hash is not None, "no attempt without a valid spec"
    creation_fields = _creation_fields(facts, revision)
    if previous is not None:
        creation_fields["initial_learners"] = previous.initial_learners
    return RunStatus(
        revision=revision.number,
        attempt=number,
        ray_job_name=child_name(facts.kind, facts.name, revision.number, number),
        inputs=_inputs_of_new_run(facts, previous, revision.defaults),
        retries=0 if previous is None else num_losses(previous),
        initial_amount=_initial_amount(facts, previous),
        active_seconds=0 if previous is None else active_seconds(previous, now),
        start_time=format_timestamp(now),
        **creation_fields,
    )


def achieved_amount(kind: str, checkpoint: CheckpointStatus | None, progress: ProgressStatus | None) -> int:
    """Return what a lost attempt leaves: the iteration of a training's checkpoint, or what a recording has saved."""
    if kind == OfflineTraining.__name__:
        return (checkpoint.iteration or 0) if checkpoint is not None else 0
    return (progress.saved_amount or 0) if progress is not None else 0


def _initial_amount(facts: Facts, previous: RunStatus | None) -> int | None:
    """Return what the earlier attempts of a revision have achieved; None for the first attempt."""
    if previous is None:
        return None
    status = read_status(facts.status)
    return max(achieved_amount(facts.kind, status.checkpoint, status.progress), previous.initial_amount or 0)


def renew_run(facts: Facts, revision: Revision, run: RunStatus) -> RunStatus:
    """Return the entry of an attempt whose RayJob does not exist yet, updated to the current spec if that is valid."""
    if revision.resource is None:
        return run
    creation_fields = _creation_fields(facts, revision)
    # With drift the attempt is not created, so its hashes and inputs stay, and the drift remains visible.
    if revision.drift is not None:
        return run.model_copy(update={"operational_fields": creation_fields["operational_fields"]})
    if run.attempt > 1:
        creation_fields["initial_learners"] = run.initial_learners
    stored_defaults = _defaults_to_store(revision.defaults, is_pinned=_is_pinned(run))
    inputs = {**run.inputs, DEFAULTS_KEY: stored_defaults}
    return run.model_copy(update={**creation_fields, "inputs": inputs})


def _creation_fields(facts: Facts, revision: Revision) -> dict[str, Any]:
    """Return the fields of an attempt's entry that record the settings with which it is created."""
    resource = revision.resource
    assert resource is not None, "no attempt without a valid spec"
    return {
        "spec_hash": revision.spec_hash,
        "course_hash": revision.course_hash,
        "image": resource.spec.cluster.image,
        "initial_learners": resource.spec.learners.replicas
        if isinstance(resource, OfflineTraining)
        else None,
        "operational_fields": {} if facts.resource is None else deferred_fields(facts.resource),
    }
