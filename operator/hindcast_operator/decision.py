"""The decision about one resource: its new status, then events, then actions, in this order."""

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

    Idempotent. An existing ConfigMap, Role or RoleBinding that differs is updated: the Role then names only this
    attempt's ConfigMap, and the RoleBinding only this attempt's ServiceAccount. An existing RayJob is left as it is.

    Attributes:
        resource: the result of `manifests.effective_resource` for the user's resource and this revision's defaults.
        attempt: number, name and inputs of the attempt.
    """

    resource: OfflineRecording | OfflineTraining
    attempt: Attempt


@dataclass(frozen=True)
class RestoreAttempt:
    """Restore the missing objects through which an attempt reports that has already read its ConfigMap. Idempotent.

    The ConfigMap is restored without the resource: the spec may have changed since the attempt was created.

    Attributes:
        attempt: number, name and inputs of the attempt.
        account: the ServiceAccount of the attempt's pods that the user or the platform named; None for their own one.
    """

    attempt: Attempt
    account: str | None


@dataclass(frozen=True)
class DeleteAttempt:
    """Delete the attempt's RayJob and with it its pods, then its ConfigMap. Idempotent.

    Attributes:
        child_name: name of the attempt's RayJob and of its ConfigMap.
        keep_config_map: delete the RayJob only.
    """

    child_name: str
    keep_config_map: bool = False


@dataclass(frozen=True)
class SetIntent:
    """Pass an intent to a running attempt, through its ConfigMap.

    Attributes:
        child_name: name of the attempt's RayJob and of its ConfigMap.
        intent: `checkpoint` asks the attempt to save a checkpoint and stop.
    """

    child_name: str
    intent: str


@dataclass(frozen=True)
class SetDeadlines:
    """Set the deadlines of a running attempt's RayJob.

    Attributes:
        child_name: name of the attempt's RayJob and of its ConfigMap.
        deadlines: field in `facts.DEADLINE_FIELDS` -> seconds, for the fields to change; None removes the field.
    """

    child_name: str
    deadlines: Mapping[str, int | None]


Action = CreateAttempt | RestoreAttempt | DeleteAttempt | SetIntent | SetDeadlines


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
        actions: to be executed in this order after the events.
        events: to be posted after the status was written.
        requeue_at: when to reconcile even if no watch reports a change (deadlines, backoff); None if never.
        ends_silent_attempt: the status ends an attempt because it reported nothing new for too long.
    """

    status: Status
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_at: datetime | None = None
    ends_silent_attempt: bool = False
