"""Deadlines, retries and clean-up of a run on a cluster."""

from typing import ClassVar, Final

from hindcast.api.attempt import MAX_REPORT_INTERVAL_SECONDS
from hindcast.api.base import BackoffLimit, Model, NonNegative, Positive
from hindcast.api.rules import Rule, compare, constant, field_value

_MIN_STALL_SECONDS: Final = 2 * MAX_REPORT_INTERVAL_SECONDS
STALL_TIMEOUT_RULE: Final = Rule(
    compare(constant(_MIN_STALL_SECONDS), "at most", field_value("stallTimeoutSeconds")),
    f"is {{0}}, expected at least {_MIN_STALL_SECONDS}, because a live run may report only every "
    f"{MAX_REPORT_INTERVAL_SECONDS} seconds",
    field="stallTimeoutSeconds",
    values=(field_value("stallTimeoutSeconds"),),
    cel_message=f"must be at least {_MIN_STALL_SECONDS}",
    checked_by="loader",  # resources that earlier versions accepted stay valid on the API server
)


class RunPolicy(Model):
    """Deadlines, retries and clean-up, which may be changed at any time, also during an attempt. Not used locally."""

    rules: ClassVar = (STALL_TIMEOUT_RULE,)

    backoff_limit: BackoffLimit = 3
    """Number of lost attempts that are retried, counted since the last progress: a training's checkpoint, or more
    recorded than before. Attempts lost with a node or with storage do not count. User errors are never retried."""
    active_deadline_seconds: Positive | None = None
    """Seconds that all attempts together may run (queued and suspended not counted). Default: no limit."""
    start_deadline_seconds: Positive | None = None
    """Seconds for which an attempt may wait for nodes, quota and whatever else its pods need (if it is queued: from its
    admission on). Default: no limit."""
    stall_timeout_seconds: Positive = 1800
    """Seconds without a heartbeat or without progress after which an attempt counts as lost, at least 60."""
    suspend_grace_seconds: NonNegative = 120
    """Seconds that an attempt gets to checkpoint when it is suspended."""
    ttl_seconds_after_finished: NonNegative = 0
    """Seconds for which pods are kept after their attempt has reported success or failure; the value at its end
    applies. Pods of other attempts are deleted at once. The resource itself is never deleted."""
