"""Fault points: before and after each kind of write, where tests kill the operator."""

import itertools
import os
from typing import Final

VARIABLE: Final = "HINDCAST_FAULT"
"""Environment variable: `before:create-rayjob` ends the process at that point, without any clean-up;
`before:create-rayjob#2` does so when the point is reached for the second time."""

EXIT_CODE: Final = 86
"""Exit code of a process that ended at a fault point."""

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

_point, _, _occurrence = os.environ.get(VARIABLE, "").partition("#")
_reach_counter = itertools.count(1)


def reach(point: str) -> None:
    """Exit if a test chose this point. `point` is `before:` or `after:` and one of `WRITES`."""
    if point == _point and next(_reach_counter) == int(_occurrence or 1):
        os._exit(EXIT_CODE)
