"""Decisions about a resource, made from plain facts: no cluster, no clock, no client.

In this package, `run` and `RunStatus` are an entry of `status.runs`, the record of one attempt, and `runs` are these
entries, newest first.
"""

from hindcast_operator.planning.plan import plan
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.runs import watched_children
from hindcast_operator.planning.status import plain_status, read_status

__all__ = ["Reason", "plain_status", "plan", "read_status", "watched_children"]
