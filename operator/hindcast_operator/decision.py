"""What is to be done about one resource: its new status, then actions, then events, in this order."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Attempt
from hindcast.api.status import Status


@dataclass(frozen=True)
class CreateAttempt:
    """Create what is missing of an attempt: ConfigMap, ServiceAccount, Role, RoleBinding, RayJob, in this order.

    Idempotent. What exists of it, and was made for an earlier attempt or spec, is brought up to date: the Role then
    names this attempt's ConfigMap only, the RoleBinding its account.

    Attributes:
        resource: `manifests.effective` of the user's, with the defaults that this revision keeps.
    """

    resource: OfflineRecording | OfflineTraining
    attempt: Attempt


@dataclass(frozen=True)
class DeleteAttempt:
    """Delete the attempt's RayJob (its pods with it), then its ConfigMap. Idempotent."""

    child: str
    keep_config_map: bool = False


@dataclass(frozen=True)
class SetIntent:
    """Pass an intent to a running attempt, through its ConfigMap."""

    child: str
    intent: str


@dataclass(frozen=True)
class SetDeadlines:
    """Give a running attempt's RayJob the deadlines that the spec has now; None takes one away."""

    child: str
    deadlines: Mapping[str, int | None]


Action = CreateAttempt | DeleteAttempt | SetIntent | SetDeadlines


@dataclass(frozen=True)
class Event:
    """A Kubernetes event on the resource: on transitions only."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """What follows from the facts.

    Attributes:
        status: the whole new status; equal to the old one where nothing changed.
        actions: done after the status was written.
        events: posted after the actions.
        requeue_at: when to reconcile even if no watch reports anything (deadlines, backoff); None: no need.
    """

    status: Status
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_at: datetime | None = None
