"""What the user and the platform want of a run, with what its revision began with held fast."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hindcast.api import OfflineRecording, OfflineTraining, spec_hash
from hindcast.api.run_policy import RunPolicy
from hindcast.api.status import RunStatus
from hindcast_operator.defaults import Defaults
from hindcast_operator.facts import Facts
from hindcast_operator.manifests import effective
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.runs import DEFAULTS_KEY, current_run
from hindcast_operator.planning.situation import Check


@dataclass(frozen=True)
class Wishes:
    """What is wanted.

    Attributes:
        revision: the spec's; the latest run's where the spec is not valid.
        resource: effective; None where the spec is not valid.
        defaults: the platform's, as the revision uses them.
        spec_hash: of the run-defining fields; None where the spec is not valid.
        drift: SpecDrift, where the spec no longer says what the revision runs.
    """

    revision: int
    suspend: bool
    policy: RunPolicy
    resource: OfflineRecording | OfflineTraining | None
    defaults: Defaults
    spec_hash: str | None
    drift: Check | None


def read_wishes(facts: Facts, defaults: Defaults, runs: Sequence[RunStatus]) -> Wishes:
    """What is wanted, from the spec and the platform's defaults.

    A spec that is not valid leaves its running attempt alone: only a new attempt needs the spec.
    """
    latest = runs[0].revision if runs else 1
    if facts.resource is None or facts.problems:
        drift = Check(True, Reason.INVALID_SPEC, invalid_message(facts)) if runs else None
        return Wishes(latest, False, RunPolicy(), None, defaults, None, drift)
    revision = max(facts.resource.spec.revision, latest)
    pinned = _pinned(defaults, [run for run in runs if run.revision == revision])
    resource = effective(facts.resource, pinned)
    digest = spec_hash(facts.resource)
    return Wishes(
        revision=revision,
        suspend=resource.spec.suspend,
        policy=resource.spec.run_policy,
        resource=resource,
        defaults=pinned,
        spec_hash=digest,
        drift=_drift(current_run(runs, revision), digest),
    )


def invalid_message(facts: Facts) -> str:
    """What is wrong with the spec."""
    return "; ".join(facts.problems) or "The spec is not valid."


def used_defaults(defaults: Defaults) -> dict[str, Any]:
    """The defaults that stay as they are within a revision, for its entries in `status.runs`."""
    used = {"image": defaults.image, "rayVersion": defaults.ray_version, "storageRoot": defaults.storage_root}
    return {name: value for name, value in used.items() if value is not None}


def _pinned(defaults: Defaults, attempts: Sequence[RunStatus]) -> Defaults:
    """The platform's defaults with what the revision began with.

    Another storage root would hide the run's checkpoints from its next attempt. The image is held once an
    attempt has reported from it; until then a mended default may heal the run.
    """
    if not attempts:
        return defaults
    used: Mapping[str, Any] = attempts[0].inputs.get(DEFAULTS_KEY, {})
    held = {"storage_root": used.get("storageRoot", defaults.storage_root)}
    if any(run.heard for run in attempts):
        held |= {"image": used.get("image"), "ray_version": used.get("rayVersion")}
    return defaults.model_copy(update={name: value for name, value in held.items() if value is not None})


def _drift(run: RunStatus | None, digest: str) -> Check | None:
    if run is None or run.spec_hash == digest:
        return None
    message = (
        f"Run-defining fields differ from those that revision {run.revision} began with (spec hash {digest}, was "
        f"{run.spec_hash}); its run is not touched. Raise spec.revision to run with the change, or take it back."
    )
    return Check(True, Reason.SPEC_CHANGED, message)
