"""The decision about one resource: its new status, then actions, then events, in this order."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Attempt
from hindcast.api.status import Status


@dataclass(frozen=True)
class CreateAttempt:
    """Create the missing objects of an attempt: ConfigMap, ServiceAccount, Role, RoleBinding, RayJob, in this order.

    Idempotent. Existing objects of an earlier attempt or spec are updated: the Role then names only this attempt's
    ConfigMap, the RoleBinding its ServiceAccount.

    Attributes:
        resource: the result of `manifests.effective_resource` for the user's resource and this revision's defaults.
        attempt: number, name and inputs of the attempt.
    """

    resource: OfflineRecording | OfflineTraining
    attempt: Attempt


@dataclass(frozen=True)
class DeleteAttempt:
    """Delete the attempt's RayJob and with it its pods, then its ConfigMap. Idempotent.

    Attributes:
        child: name of the attempt's RayJob.
        keep_config_map: delete the RayJob only.
    """

    child: str
    keep_config_map: bool = False


@dataclass(frozen=True)
class SetIntent:
    """Pass an intent to a running attempt, through its ConfigMap.

    Attributes:
        child: name of the attempt's ConfigMap.
        intent: `checkpoint` asks the attempt to save a checkpoint and stop.
    """

    child: str
    intent: str


@dataclass(frozen=True)
class SetDeadlines:
    """Set the deadlines of a running attempt's RayJob.

    Attributes:
        child: name of the RayJob.
        deadlines: field in `facts.DEADLINE_FIELDS` -> seconds; None removes the deadline.
    """

    child: str
    deadlines: Mapping[str, int | None]


Action = CreateAttempt | DeleteAttempt | SetIntent | SetDeadlines


@dataclass(frozen=True)
class Event:
    """A Kubernetes event on the resource, posted on transitions only."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """The new status, the actions and the events that follow from the facts.

    Attributes:
        status: the whole new status; equal to the old one if nothing changed.
        actions: executed after the status was written.
        events: posted after the actions.
        requeue_at: when to reconcile even if no watch reports a change (deadlines, backoff); None if never.
    """

    status: Status
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_at: datetime | None = None
