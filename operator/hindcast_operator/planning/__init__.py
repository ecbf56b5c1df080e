"""Decisions about a resource, made from plain facts: no cluster, no clock, no client."""

from hindcast_operator.planning.plan import plan
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.planning.runs import watched_children
from hindcast_operator.planning.status import plain_status, read_status

__all__ = ["Reason", "plain_status", "plan", "read_status", "watched_children"]
