"""When an attempt's time is up, each deadline by its own clock; None where that clock does not run."""

from datetime import datetime
from typing import Final

from hindcast.api.attempt import LONGEST_SILENCE_SECONDS
from hindcast_operator.planning.times import after, earliest, parse
from hindcast_operator.planning.view import UNREACHABLE_SECONDS, View, is_over

SETTLING_SECONDS: Final = 10
"""A RayJob that has ended may be seen before the attempt's last report."""

HEADLESS_SECONDS: Final = 2 * LONGEST_SILENCE_SECONDS
"""An attempt without a head pod that is silent this long has no driver."""


def start_due(view: View) -> datetime | None:
    """Until when the attempt must have reported: from its admission; a queued one has all the time."""
    if view.run.admitted is None or view.run.heard is not None:
        return None
    return after(parse(view.run.admitted), view.wishes.policy.start_deadline_seconds)


def active_due(view: View) -> datetime | None:
    """Until when all attempts together may run; queued and suspended time does not count."""
    limit = view.wishes.policy.active_deadline_seconds
    if limit is None or view.run.admitted is None:
        return None
    return after(parse(view.run.admitted), limit - view.run.active_seconds)


def silence_due(view: View) -> datetime | None:
    """Until when the attempt must report again."""
    found = view.config_map
    if found is None or found.beat_seen is None:
        return None
    return after(found.beat_seen, view.wishes.policy.stall_timeout_seconds)


def still_due(view: View) -> datetime | None:
    """Until when the attempt must move on."""
    found = view.config_map
    if found is None or found.moved_seen is None:
        return None
    return after(found.moved_seen, view.wishes.policy.stall_timeout_seconds)


def head_due(view: View) -> datetime | None:
    """Until when an attempt that has reported, and has no head now, must report again."""
    found, head = view.config_map, view.head
    if found is None or found.beat_seen is None:
        return None
    if head is None:
        return after(found.beat_seen, HEADLESS_SECONDS)
    if head.unreachable_since is None:
        return None
    return after(max(head.unreachable_since, found.beat_seen), UNREACHABLE_SECONDS)


def settled_due(view: View) -> datetime | None:
    """When a RayJob that has ended says so for good."""
    job = view.job
    if job is None or not is_over(job):
        return None
    return view.now if job.ended is None else after(job.ended, SETTLING_SECONDS)


def stop_due(view: View) -> datetime | None:
    """Until when an attempt that was asked to checkpoint and end may take."""
    if view.run.asked_to_stop is None:
        return None
    return after(parse(view.run.asked_to_stop), view.wishes.policy.suspend_grace_seconds)


def next_deadline(view: View) -> datetime | None:
    """The next of them."""
    return earliest(
        start_due(view),
        active_due(view),
        silence_due(view),
        still_due(view),
        head_due(view),
        settled_due(view),
        stop_due(view),
    )
