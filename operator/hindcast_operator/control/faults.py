"""Fault points: where tests kill the operator, before and after each kind of write."""

import itertools
import os
from typing import Final

VARIABLE: Final = "HINDCAST_FAULT"
"""`before:create-rayjob` ends the process at that point, without any clean-up; `…#2` the second time."""

EXIT_CODE: Final = 86

WRITES: Final = (
    "write-status",
    "create-configmap",
    "create-serviceaccount",
    "create-role",
    "create-rolebinding",
    "create-rayjob",
    "apply-configmap",
    "apply-role",
    "apply-rolebinding",
    "delete-rayjob",
    "delete-configmap",
    "set-intent",
    "set-deadlines",
    "create-event",
)
"""Every kind of write of the reconciler."""

_point, _, _time = os.environ.get(VARIABLE, "").partition("#")
_reached = itertools.count(1)


def reach(point: str) -> None:
    """Exit here if that was asked for. `point` is `before:` or `after:` and one of `WRITES`."""
    if point == _point and next(_reached) == int(_time or 1):
        os._exit(EXIT_CODE)
