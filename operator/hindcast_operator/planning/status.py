"""The status as it is stored, read and put together."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hindcast.api.attempt import Report
from hindcast.api.status import Condition, Status
from hindcast_operator.planning.conditions import conditions_of
from hindcast_operator.planning.situation import FINISHED, Check, Situation


def read_status(plain: Mapping[str, Any]) -> Status:
    """The status of a resource; that of a new one where there is none."""
    return Status.model_validate(dict(plain), by_alias=True, by_name=False)


def plain_status(status: Status) -> dict[str, Any]:
    """The status as it is written: camelCase, without what is not there. Equal plain statuses need no write.

    Nothing in it is empty: server-side apply makes null of a mapping whose last entry goes, and refuses that.
    """
    plain: dict[str, Any] = _without_empty(status.model_dump(mode="json", by_alias=True, exclude_none=True))
    return plain


def _without_empty(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_empty(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    entries = {name: _without_empty(entry) for name, entry in value.items()}
    return {name: entry for name, entry in entries.items() if entry not in ({}, [])}


def condition_of(status: Status, type_: str) -> Condition | None:
    """The condition of that type."""
    return next((entry for entry in status.conditions if entry.type == type_), None)


def status_of(
    situation: Situation,
    old: Status,
    *,
    report: Report | None,
    resolved: Mapping[str, Any] | None,
    drift: Check | None,
    generation: int,
    now: datetime,
    fresh: bool,
) -> Status:
    """The whole status.

    Args:
        report: of the current attempt; what it does not say stays as it was.
        resolved: sizes of an attempt that is created now; None keeps the old ones.
        drift: SpecDrift, where it holds.
        fresh: nothing of the revision was made yet: what an older one achieved is no longer told.
    """
    kept = Status() if fresh else old
    report = report or Report(beat=1, at="", moved="")
    runs = situation.runs
    named = bool(runs) and (runs[0].outcome is None or situation.state in FINISHED)
    return Status(
        observed_generation=generation,
        state=situation.state,
        message=situation.message if drift is None else _with_drift(situation, drift),
        conditions=conditions_of(situation, drift, old.conditions, generation, now),
        ray_job=runs[0].child if named else None,
        progress=report.progress or kept.progress,
        output=report.output or kept.output,
        checkpoint=report.checkpoint or kept.checkpoint,
        resolved=kept.resolved if resolved is None else dict(resolved),
        runs=list(runs),
    )


def _with_drift(situation: Situation, drift: Check) -> str:
    if situation.state == "Stalled":
        return situation.message
    return f"{situation.message.rstrip('.')}. {drift.message}"
