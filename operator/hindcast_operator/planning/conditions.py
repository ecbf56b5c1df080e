"""The conditions of a situation, as kstatus, Argo, Flux and `kubectl wait` read them.

Reconciling, Stalled, Suspended, SpecDrift, Complete, Failed and Finished are there only while they hold: kstatus
takes whichever of Reconciling and Stalled it finds True, and `kubectl wait` waits for True.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal

from hindcast.api.status import Condition
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.situation import FINISHED, Check, Situation, State
from hindcast_operator.planning.times import stamp

_READY: tuple[State, ...] = ("Running", "Suspended", "Succeeded")
_STALLED: tuple[State, ...] = ("Stalled", "Failed")


def conditions_of(
    situation: Situation, drift: Check | None, old: Sequence[Condition], generation: int, now: datetime
) -> list[Condition]:
    """All conditions, in a fixed order; those whose status did not change keep their time."""
    since: dict[tuple[str, str], str] = {
        (entry.type, entry.status): entry.last_transition_time for entry in old
    }
    conditions = []
    for type_, check in _checks(situation, drift):
        status: Literal["True", "False"] = "True" if check.holds else "False"
        conditions.append(
            Condition(
                type=type_,
                status=status,
                reason=check.reason.value,
                message=check.message,
                last_transition_time=since.get((type_, status), stamp(now)),
                observed_generation=generation,
            )
        )
    return conditions


def _checks(situation: Situation, drift: Check | None) -> Iterator[tuple[str, Check]]:
    state = situation.state
    holds = Check(True, situation.reason, situation.message)
    ready = state in _READY
    yield "Ready", Check(ready, situation.reason, situation.message)
    if not ready:
        yield "Stalled" if state in _STALLED else "Reconciling", holds
    if situation.data is not None:
        yield "DataReady", situation.data
    if situation.cluster is not None:
        yield "ClusterReady", situation.cluster
    if drift is not None:
        yield "SpecDrift", drift
    if state == "Suspended":
        yield "Suspended", holds
    if state == "Suspending":
        yield "Suspended", Check(False, Reason.SUSPENDING, situation.message)
    if state in FINISHED:
        yield "Complete" if state == "Succeeded" else "Failed", holds
        yield "Finished", holds
