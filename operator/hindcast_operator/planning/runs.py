"""The entries of `status.runs`: begun, ended, counted."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Attempt, Input
from hindcast.api.status import RunStatus, Status
from hindcast_operator.facts import Facts
from hindcast_operator.names import child_name
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.times import parse, stamp

MOST_RUNS: Final = 32
DEFAULTS_KEY: Final = "defaults"

Outcome = Literal["Succeeded", "Failed", "Lost", "Suspended", "Preempted", "Superseded"]


def current_run(runs: Sequence[RunStatus], revision: int) -> RunStatus | None:
    """The latest attempt of the revision."""
    return runs[0] if runs and runs[0].revision == revision else None


def next_number(runs: Sequence[RunStatus], revision: int) -> int:
    """Number of the revision's next attempt."""
    run = current_run(runs, revision)
    return 1 if run is None else run.attempt + 1


def watched_children(
    kind: str, name: str, resource: OfflineRecording | OfflineTraining | None, status: Status
) -> tuple[str, ...]:
    """Children that must have been looked at before anything is decided.

    The one that runs, that of a finished run, and the next one.
    """
    revision = resource.spec.revision if resource is not None else 1
    if status.runs:
        revision = max(revision, status.runs[0].revision)
    latest = [status.runs[0].child] if status.runs else []
    return (*latest, child_name(kind, name, revision, next_number(status.runs, revision)))


def ended(run: RunStatus, outcome: Outcome, reason: Reason, message: str, now: datetime) -> RunStatus:
    """The entry of an attempt that is over."""
    return run.model_copy(
        update={"outcome": outcome, "reason": reason.value, "message": message, "finished": stamp(now)}
    )


def active_seconds(run: RunStatus, now: datetime) -> int:
    """Seconds that the revision's attempts could use nodes, this one included."""
    if run.admitted is None:
        return run.active_seconds
    end = parse(run.finished) if run.finished is not None else now
    return run.active_seconds + max(0, int((end - parse(run.admitted)).total_seconds()))


def losses(run: RunStatus) -> int:
    """Attempts of the revision that were lost, this one included."""
    return run.retries + (run.outcome == "Lost")


def replace_latest(runs: Sequence[RunStatus], run: RunStatus) -> tuple[RunStatus, ...]:
    """The history with a changed latest entry."""
    return (run, *runs[1:])


def with_new(runs: Sequence[RunStatus], run: RunStatus) -> tuple[RunStatus, ...]:
    """The history with a new entry; the oldest go, except the latest of each revision."""
    history = [run, *runs]
    for at in range(len(history) - 1, 0, -1):
        if len(history) <= MOST_RUNS:
            break
        if history[at - 1].revision == history[at].revision:
            del history[at]
    return tuple(history[:MOST_RUNS])


def inputs_of(run: RunStatus) -> dict[str, Input]:
    """What the attempt was given."""
    return {key: Input.model_validate(value) for key, value in run.inputs.items() if key != DEFAULTS_KEY}


def attempt_of(run: RunStatus, facts: Facts) -> Attempt:
    """What the attempt is told of itself."""
    return Attempt(
        revision=run.revision,
        number=run.attempt,
        child=run.child,
        namespace=facts.namespace,
        uid=facts.uid,
        spec_hash=run.spec_hash,
        inputs=inputs_of(run),
        first_learners=run.first_learners or 1,
    )


def begin(
    facts: Facts,
    *,
    revision: int,
    number: int,
    resource: OfflineRecording | OfflineTraining,
    spec_hash: str,
    previous: RunStatus | None,
    inputs: Mapping[str, object],
    now: datetime,
) -> RunStatus:
    """The entry of an attempt that is about to be created.

    Args:
        resource: effective.
        previous: the attempt of the revision before it.
        inputs: of the entry: what it was given, and the defaults.
    """
    learners = resource.spec.learners.replicas if isinstance(resource, OfflineTraining) else None
    if previous is not None:
        learners = previous.first_learners
    return RunStatus(
        revision=revision,
        attempt=number,
        child=child_name(facts.kind, facts.name, revision, number),
        spec_hash=spec_hash,
        image=resource.spec.cluster.image,
        inputs=dict(inputs),
        first_learners=learners,
        retries=0 if previous is None else losses(previous),
        active_seconds=0 if previous is None else active_seconds(previous, now),
        started=stamp(now),
    )


def number_of(child: str, stem: str) -> int | None:
    """Number of a child whose name begins with the revision's stem, `<name>-r1-`."""
    match = re.fullmatch(re.escape(stem) + r"([1-9][0-9]*)", child)
    return int(match.group(1)) if match else None
