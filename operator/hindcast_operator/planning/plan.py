"""The plan: a pure function from the facts about one resource to a decision."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from hindcast.api.attempt import Report
from hindcast.api.status import RunStatus, Status
from hindcast_operator.decision import CreateAttempt, Decision
from hindcast_operator.defaults import Defaults
from hindcast_operator.facts import Facts
from hindcast_operator.manifests import compute_sizes
from hindcast_operator.planning.attempts import observe_attempt, owned_config_map
from hindcast_operator.planning.outcomes import end_attempt, find_ending
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.revisions import check_change_waiting, requested_revision
from hindcast_operator.planning.runs import current_run, end_run, replace_latest_run
from hindcast_operator.planning.situations import (
    Case,
    adopt_run,
    finished_situation,
    live_situation,
    should_continue,
    situation_before_attempt,
    unobservable_situation,
)
from hindcast_operator.planning.status import Situation, events_between, new_status, read_status


def plan(facts: Facts, defaults: Defaults) -> Decision:
    """Decide what to do about one resource.

    The same facts give the same decision. Once a decision is executed, later ones have an equal status and no actions
    until something else changes, with two exceptions: a refused creation is retried, and a deadline may pass. If a
    decision was executed only in part, the next one completes it.

    Args:
        facts: the facts, with the stored status.
        defaults: the platform's defaults.
    """
    old = read_status(facts.status)
    if facts.is_deleting:
        return Decision(old)
    now = facts.now.replace(microsecond=0)
    revision = requested_revision(facts, defaults, old.runs)
    # An empty history may be that of a lost status, so `adopt_run` looks for an attempt that already exists.
    runs = _supersede_runs(old.runs, revision.number, now) or adopt_run(facts, revision, now)
    situation = _find_situation(Case(facts, revision, runs, now), old)
    run = current_run(situation.runs, revision.number)
    spec_changes = {"SpecDrift": revision.drift, "ChangeWaiting": check_change_waiting(facts.resource, run)}
    status = new_status(
        situation,
        old,
        report=_current_report(facts, run),
        resolved=_resolved_sizes(situation, facts),
        spec_changes={type_: change for type_, change in spec_changes.items() if change is not None},
        generation=facts.generation,
        now=now,
        is_new_revision=run is None or (bool(old.runs) and old.runs[0].revision != revision.number),
    )
    return Decision(
        status,
        situation.actions,
        events_between(old, status),
        situation.requeue_at,
        situation.ends_silent_attempt,
    )


def _find_situation(case: Case, old: Status) -> Situation:
    run, is_silent = case.run, False
    if run is not None and run.outcome is None:
        if (obstacle := unobservable_situation(case)) is not None:
            return obstacle
        attempt = observe_attempt(case.facts, old, case.revision, run, case.now)
        run, ending = find_ending(attempt, old.resolved)
        if ending is None:
            return live_situation(case, attempt.with_run(run))
        run = end_attempt(attempt, ending)
        case, is_silent = case.with_run(run), ending.is_silent
    if run is not None and run.outcome in ("Succeeded", "Failed") and not should_continue(case, run):
        situation = finished_situation(case, run)
    else:
        situation = situation_before_attempt(case)
    return replace(situation, ends_silent_attempt=is_silent)


def _supersede_runs(runs: Sequence[RunStatus], revision: int, now: datetime) -> tuple[RunStatus, ...]:
    """Return the history, in which an unfinished latest attempt of an older revision ends as `Superseded`."""
    # The attempt is deleted without waiting for a checkpoint, because nothing will resume from it.
    if not runs or runs[0].outcome is not None or runs[0].revision == revision:
        return tuple(runs)
    message = f"spec.revision was raised to {revision}"
    return replace_latest_run(runs, end_run(runs[0], "Superseded", Reason.SUPERSEDED, message, now))


def _current_report(facts: Facts, run: RunStatus | None) -> Report | None:
    """Return the latest report of the attempt `run`, or None."""
    attempt = None if run is None else facts.attempts.get(run.ray_job_name)
    config_map = None if attempt is None else owned_config_map(attempt, facts.uid)
    return None if config_map is None else config_map.report


def _resolved_sizes(situation: Situation, facts: Facts) -> Mapping[str, Any] | None:
    """Return the value of `status.resolved` for the attempt that is about to be created; None if none is."""
    create = next((action for action in situation.actions if isinstance(action, CreateAttempt)), None)
    if create is None:
        return None
    attempt = facts.attempts.get(create.attempt.ray_job_name)
    if attempt is not None and attempt.ray_job is not None:
        return None  # The action only restores objects; the pods have the sizes of their creation.
    sizes = compute_sizes(create.resource, create.attempt.inputs, create.attempt.learner_peak_bytes)
    return sizes.to_status()
