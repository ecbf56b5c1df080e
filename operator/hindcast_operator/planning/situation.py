"""How a resource stands: what its status will say, and what is to be done."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from hindcast.api.status import RunStatus
from hindcast_operator.decision import Action
from hindcast_operator.planning.reasons import Reason

State = Literal[
    "Pending",
    "Waiting",
    "Queued",
    "Starting",
    "Running",
    "Retrying",
    "Suspending",
    "Suspended",
    "Stalled",
    "Succeeded",
    "Failed",
]
"""`Stalled`: somebody must do something, then it goes on by itself. `Failed`: final for the revision."""

FINISHED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Check:
    """A condition's status, reason and message."""

    holds: bool
    reason: Reason
    message: str


@dataclass(frozen=True)
class Situation:
    """How a resource stands.

    Attributes:
        reason: of Ready, and of Reconciling or Stalled.
        message: one sentence for people: why, and what to do next.
        runs: the history, newest first.
        data: DataReady, where the resource refers to others.
        cluster: ClusterReady, where there is an attempt.
        look_again: the next deadline.
    """

    state: State
    reason: Reason
    message: str
    runs: tuple[RunStatus, ...]
    actions: tuple[Action, ...] = ()
    data: Check | None = None
    cluster: Check | None = None
    look_again: datetime | None = None
