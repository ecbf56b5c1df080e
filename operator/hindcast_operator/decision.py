"""What is to be done about one resource: its new status, then actions, then events, in this order."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Attempt
from hindcast.api.status import Status


@dataclass(frozen=True)
class CreateAttempt:
    """Make what is missing of an attempt: ConfigMap, ServiceAccount, Role, RoleBinding, RayJob, in this order.

    Doing it again does nothing. The Role then names this attempt's ConfigMap alone.

    Attributes:
        resource: `manifests.effective` of the user's, with the defaults that this revision began with.
    """

    resource: OfflineRecording | OfflineTraining
    attempt: Attempt


@dataclass(frozen=True)
class DeleteAttempt:
    """Delete the attempt's RayJob (its pods with it), then its ConfigMap. Doing it again does nothing."""

    child: str
    keep_config_map: bool = False


@dataclass(frozen=True)
class SetIntent:
    """Tell a running attempt what is wanted, in its ConfigMap."""

    child: str
    intent: str


Action = CreateAttempt | DeleteAttempt | SetIntent


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
        look_again: when to reconcile although nothing was heard (deadlines, backoff); None: no need.
    """

    status: Status
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    look_again: datetime | None = None
