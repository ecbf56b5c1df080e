"""The plan: what follows from what was observed of one resource. A pure function."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from hindcast.api.attempt import Report
from hindcast.api.status import RunStatus, Status
from hindcast_operator.decision import CreateAttempt, Decision
from hindcast_operator.defaults import Defaults
from hindcast_operator.facts import Facts
from hindcast_operator.manifests import sizes
from hindcast_operator.planning.events import events_of
from hindcast_operator.planning.following import adopted, deletions, finished, next_step, without_kuberay
from hindcast_operator.planning.live import concluded, ended_or_asked, look, standing
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.references import data_check
from hindcast_operator.planning.runs import current_run, ended, replace_latest
from hindcast_operator.planning.situation import Situation
from hindcast_operator.planning.status import read_status, status_of
from hindcast_operator.planning.view import own_config_map
from hindcast_operator.planning.wishes import Wishes, read_wishes


def plan(facts: Facts, defaults: Defaults) -> Decision:
    """What is to be done about one resource.

    The same facts give the same decision. Once it is carried out, and as long as nothing changes but the time
    between two deadlines, the status is equal to the one that is stored. A decision that was carried out in
    part, up to any point, is completed by the next one.

    Args:
        facts: what was observed, with the status that is stored.
        defaults: the platform's.
    """
    old = read_status(facts.status)
    if facts.deleting:
        return Decision(old)
    now = facts.now.replace(microsecond=0)
    wishes = read_wishes(facts, defaults, old.runs)
    runs = _superseded(old.runs, wishes.revision, now) or adopted(facts, wishes, now)
    situation = _situation(facts, old, wishes, runs, now)
    fresh = current_run(situation.runs, wishes.revision) is None
    status = status_of(
        situation,
        old,
        report=_report(facts, situation.runs, wishes.revision),
        resolved=_resolved(situation, old),
        drift=wishes.drift,
        generation=facts.generation,
        now=now,
        fresh=fresh or (bool(old.runs) and old.runs[0].revision != wishes.revision),
    )
    return Decision(status, situation.actions, events_of(old, status), situation.look_again)


def _situation(
    facts: Facts, old: Status, wishes: Wishes, runs: tuple[RunStatus, ...], now: datetime
) -> Situation:
    run = current_run(runs, wishes.revision)
    if run is not None and run.outcome is None:
        data = data_check(facts, run)
        if facts.kuberay == "NotInstalled":
            return without_kuberay(runs, data)
        view = look(facts, old, wishes, run, now)
        run, ending = ended_or_asked(view, old.resolved)
        if ending is None:
            going = standing(view.with_run(run), facts, runs, data)
            return replace(going, actions=(*deletions(facts, spared=run.child), *going.actions))
        run = concluded(view, ending)
        runs = replace_latest(runs, run)
    if run is not None and run.outcome in ("Succeeded", "Failed"):
        return finished(facts, run, runs, data_check(facts, run), now)
    return next_step(facts, wishes, runs, now)


def _superseded(runs: Sequence[RunStatus], revision: int, now: datetime) -> tuple[RunStatus, ...]:
    """The history; an attempt of an older revision that went on is over.

    It is deleted without waiting for a checkpoint: nobody will continue it.
    """
    if not runs or runs[0].outcome is not None or runs[0].revision == revision:
        return tuple(runs)
    message = f"spec.revision was raised to {revision}"
    return replace_latest(runs, ended(runs[0], "Superseded", Reason.SUPERSEDED, message, now))


def _report(facts: Facts, runs: Sequence[RunStatus], revision: int) -> Report | None:
    run = current_run(runs, revision)
    attempt = None if run is None else facts.attempts.get(run.child)
    if attempt is None:
        return None
    found = own_config_map(attempt, facts.uid)
    return None if found is None else found.report


def _resolved(situation: Situation, old: Status) -> Mapping[str, Any] | None:
    """Sizes of an attempt that is new in the history."""
    if not situation.runs or [run.child for run in old.runs[:1]] == [situation.runs[0].child]:
        return None
    create = next((action for action in situation.actions if isinstance(action, CreateAttempt)), None)
    if create is None:
        return None
    return sizes(create.resource, create.attempt.inputs).to_status()
