"""What keeps the next attempt from being created, although it is its turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from hindcast.api.status import RunStatus
from hindcast_operator.facts import AttemptFacts, Facts, ObjectFacts
from hindcast_operator.manifests import refusals
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.situation import Check, Situation
from hindcast_operator.planning.times import after
from hindcast_operator.planning.wishes import Wishes, invalid_message

POLL_SECONDS = 30
"""Objects of other resources are not watched for this one: they are looked at again."""


@dataclass(frozen=True)
class Hold:
    """Why no attempt is created now.

    Attributes:
        state: `Stalled` where somebody must do something, else `Pending`.
        polls: nothing will tell when it is over.
    """

    state: Literal["Pending", "Stalled"]
    reason: Reason
    message: str
    polls: bool = False

    def situation(self, runs: Sequence[RunStatus], data: Check | None, now: datetime) -> Situation:
        """The situation that it makes."""
        again = after(now, POLL_SECONDS) if self.polls else None
        return Situation(self.state, self.reason, self.message, tuple(runs), data=data, look_again=again)


def hold_of_spec(facts: Facts, wishes: Wishes) -> Hold | None:
    """What is wrong with the spec: no attempt can be created from it."""
    if wishes.resource is None:
        return Hold("Stalled", Reason.INVALID_SPEC, invalid_message(facts))
    if wishes.drift is not None:
        return Hold("Stalled", wishes.drift.reason, wishes.drift.message)
    if refused := refusals(wishes.resource, wishes.defaults):
        return Hold("Stalled", Reason.REFUSED_BY_PLATFORM, "; ".join(refused))
    return None


def hold_of_names(attempt: AttemptFacts, uid: str) -> Hold | None:
    """What stands where the attempt's objects shall be."""
    if attempt.conflict is not None:
        message = f"{attempt.conflict} has a name that the attempt needs; rename this resource, or delete that object"
        return Hold("Stalled", Reason.NAME_CONFLICT, message, polls=True)
    for kind, found in (("RayJob", attempt.ray_job), ("ConfigMap", attempt.config_map)):
        if found is not None and (found.owner_uid != uid or found.deleting):
            return _hold_of_object(f"{kind}/{attempt.child}", found)
    return None


def hold_on_creation(attempt: AttemptFacts, wishes: Wishes, facts: Facts) -> Hold | None:
    """What keeps this attempt from being created."""
    return hold_of_spec(facts, wishes) or hold_of_names(attempt, facts.uid)


def _hold_of_object(name: str, found: ObjectFacts) -> Hold:
    if found.owner_uid is None and not found.deleting:
        message = f"{name} belongs to nobody, but has a name that the attempt needs; delete it, or rename this resource"
        return Hold("Stalled", Reason.NAME_CONFLICT, message, polls=True)
    message = f"Waits until {name} of an earlier resource or attempt is gone"
    return Hold("Pending", Reason.CLEANING_UP, message, polls=True)
