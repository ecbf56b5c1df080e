"""The entries of `status.runs`, each the record of one attempt: end, history, and the pause before a retry."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, Final, Literal

from hindcast.api import Resource
from hindcast.api.attempt import UNCOUNTED_REASONS, Attempt, ResolvedInput
from hindcast.api.base import FIXED, LOCATION, Mark, Model
from hindcast.api.status import RunStatus, Status
from hindcast_operator.facts import Facts
from hindcast_operator.names import child_name
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.times import format_timestamp, parse_time, time_after

MAX_RUNS: Final = 10
"""Maximum number of entries in `status.runs`."""
DEFAULTS_KEY: Final = "defaults"
"""Key of the platform's defaults in `inputs` of an entry; the other keys are `Kind/name`."""
DIGEST_PREFIX: Final = "sha256:"
"""Prefix of the digest that represents a list or a mapping in the result of `deferred_fields`."""
MIN_PAUSE_SECONDS: Final = 10
MAX_PAUSE_SECONDS: Final = 600
MIN_LONG_PAUSE_SECONDS: Final = 120
MAX_LONG_PAUSE_SECONDS: Final = 3600
LONG_PAUSE_REASONS: Final = (Reason.STORAGE_UNAVAILABLE, Reason.GPUS_RELEASED)
"""Reasons that may last long. The next attempt, which starts a cluster with GPUs to find out, begins later."""

_PEAK_METRIC: Final = "learnerPeakBytes"
_IMMEDIATE_FIELDS: Final = ("spec.revision", "spec.suspend", "spec.runPolicy")
"""Fields whose changes apply at once, also to an existing attempt."""

Outcome = Literal["Succeeded", "Failed", "Lost", "Suspended", "Preempted", "Superseded"]


def current_run(runs: Sequence[RunStatus], revision: int) -> RunStatus | None:
    """Return the entry of the latest attempt if it is of the revision, else None."""
    return runs[0] if runs and runs[0].revision == revision else None


def next_attempt_number(runs: Sequence[RunStatus], revision: int) -> int:
    """Return the number of the revision's next attempt."""
    run = current_run(runs, revision)
    return 1 if run is None else run.attempt + 1


def watched_children(kind: str, name: str, resource: Resource | None, status: Status) -> tuple[str, ...]:
    """Return the names of the children that must be observed before a decision: the latest and the next attempt's."""
    revision = resource.spec.revision if resource is not None else 1
    if status.runs:
        revision = max(revision, status.runs[0].revision)
    latest = [status.runs[0].ray_job_name] if status.runs else []
    return (*latest, child_name(kind, name, revision, next_attempt_number(status.runs, revision)))


def attempt_number(child: str, stem: str) -> int | None:
    """Return the number in the child's name after the stem, such as 3 in `<name>-r1-3`; None if the name differs."""
    match = re.fullmatch(re.escape(stem) + r"([1-9][0-9]*)", child)
    return int(match.group(1)) if match else None


# -- the history -------------------------------------------------------------------------------------------


def end_run(run: RunStatus, outcome: Outcome, reason: Reason, message: str, now: datetime) -> RunStatus:
    """Return the entry of an attempt as ended at `now`."""
    return run.model_copy(
        update={
            "outcome": outcome,
            "reason": reason.value,
            "message": message,
            "end_time": format_timestamp(now),
            "operational_fields": {},
        }
    )


def replace_latest_run(runs: Sequence[RunStatus], run: RunStatus) -> tuple[RunStatus, ...]:
    """Return the history with a changed latest entry."""
    return (run, *runs[1:])


def add_run(runs: Sequence[RunStatus], run: RunStatus) -> tuple[RunStatus, ...]:
    """Return the history with a new entry, and at most `MAX_RUNS` entries.

    The oldest entries are dropped. The latest of each revision stays, unless there are more than `MAX_RUNS` revisions.
    Only the latest entry has inputs, which may be long.
    """
    history = [run, *(entry.model_copy(update={"inputs": {}}) for entry in runs)]
    for index in range(len(history) - 1, 0, -1):
        if len(history) <= MAX_RUNS:
            break
        if history[index - 1].revision == history[index].revision:
            del history[index]
    return tuple(history[:MAX_RUNS])


# -- what an attempt was created with -----------------------------------------------------------------------


def describe_attempt(run: RunStatus, facts: Facts) -> Attempt:
    """Return the description of an attempt that is passed to it."""
    return Attempt(
        revision=run.revision,
        number=run.attempt,
        ray_job_name=run.ray_job_name,
        namespace=facts.namespace,
        uid=facts.uid,
        spec_hash=run.spec_hash,
        inputs={key: ResolvedInput.model_validate(run.inputs[key]) for key in input_names(run)},
        learner_peak_bytes=_measured_peak(run, facts),
    )


def _measured_peak(run: RunStatus, facts: Facts) -> int | None:
    """Return the memory of a learner that the stored status reports of earlier attempts of the run's revision."""
    if run.attempt == 1:  # the status may have the progress of another revision
        return None
    metrics = (facts.status.get("progress") or {}).get("metrics", {})
    return int(metrics.get(_PEAK_METRIC, 0)) or None


def input_names(run: RunStatus) -> list[str]:
    """Return `Kind/name` of each resource that provides an input of the attempt."""
    return [key for key in run.inputs if key != DEFAULTS_KEY]


def deferred_fields(resource: Resource) -> dict[str, Any]:
    """Return path -> value of the fields whose changes within a revision apply from the next attempt on.

    Unset and empty fields are left out. The value of a list or mapping is a digest.
    """
    return dict(_walk_deferred_fields(resource.spec, "spec", is_in_marked_section=False))


def _walk_deferred_fields(model: Model, path: str, is_in_marked_section: bool) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each deferred field of a section; a section's mark counts for all its fields."""
    for name, field in type(model).model_fields.items():
        value, field_path = getattr(model, name), f"{path}.{field.alias or name}"
        marks = [mark for mark in field.metadata if isinstance(mark, Mark)]
        if value in (None, [], {}) or field_path in _IMMEDIATE_FIELDS or LOCATION in marks or FIXED in marks:
            continue
        if isinstance(value, Model):
            yield from _walk_deferred_fields(value, field_path, is_in_marked_section or bool(marks))
        elif is_in_marked_section or marks:
            yield field_path, value if isinstance(value, bool | int | float | str) else _digest(model, name)


def _digest(model: Model, name: str) -> str:
    text = model.model_dump_json(include={name})
    return f"{DIGEST_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:16]}"


# -- losses and retries -------------------------------------------------------------------------------------


def num_losses(run: RunStatus) -> int:
    """Return how many attempts of the revision, up to and including this one, were lost since its last progress.

    Attempts that were lost for one of `UNCOUNTED_REASONS` do not count.
    """
    return run.retries + (run.outcome == "Lost" and run.reason not in UNCOUNTED_REASONS)


def num_uncounted_losses(runs: Sequence[RunStatus]) -> int:
    """Return how many of the latest attempts were lost in a row for the same uncounted reason."""
    if not runs or runs[0].reason not in UNCOUNTED_REASONS:
        return 0
    latest = (runs[0].revision, runs[0].reason)
    return len(list(takewhile(lambda run: (run.revision, run.reason) == latest, runs)))


def active_seconds(run: RunStatus, now: datetime) -> int:
    """Return the seconds of the revision's attempts up to and including this one, without the time in Kueue's queue."""
    if run.admission_time is None:
        return run.active_seconds
    end = parse_time(run.end_time) if run.end_time is not None else now
    return run.active_seconds + max(0, int((end - parse_time(run.admission_time)).total_seconds()))


def retry_time(runs: Sequence[RunStatus]) -> datetime:
    """Return when the next attempt begins, after the latest one was lost.

    The pause is 10 s after the first loss and doubles with each further loss, up to 600 s. If storage was unavailable
    or nodes were missing, it is 120 s and doubles up to an hour. Each pause is up to a quarter longer or shorter.

    Args:
        runs: the history, newest first.
    """
    run = runs[0]
    minimum, maximum, number = MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS, num_losses(run)
    if run.reason in LONG_PAUSE_REASONS:
        minimum, maximum, number = MIN_LONG_PAUSE_SECONDS, MAX_LONG_PAUSE_SECONDS, num_uncounted_losses(runs)
    seconds = min(minimum * 2 ** min(max(number - 1, 0), 16), maximum)
    # Runs that were lost with one node must not all start again at the same time. The jitter is a hash of the attempt's
    # name, not random, so that a restarted operator computes the same pause.
    fraction = int.from_bytes(hashlib.sha256(run.ray_job_name.encode()).digest()[:4]) / 2**32
    assert run.end_time is not None, "a lost attempt has ended"
    return time_after(parse_time(run.end_time), round(seconds * (0.75 + fraction / 2)))
