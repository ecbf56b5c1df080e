"""Classifies errors: whether another attempt is worth it, and the message for people."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import ray.exceptions as ray_errors

from hindcast.api.attempt import AttemptOutcome, AttemptReason, AttemptState
from hindcast.api.status import OutputStatus
from hindcast.cluster.log import make_redactor
from hindcast.errors import (
    DataError,
    Interrupted,
    NoCudaDevice,
    OutOfMemory,
    OutputConflict,
    SpecError,
    StorageError,
    StorageUnavailable,
    UserCodeError,
    UserError,
    WorkerLost,
)
from hindcast.report.events import Outcome

MAX_MESSAGE_LENGTH: Final = 500
DEFECT_EXIT_CODE: Final = 70

_USER_ERRORS: Final[tuple[tuple[type[UserError], AttemptState, AttemptReason], ...]] = (
    (Interrupted, "Suspended", "Suspended"),
    (NoCudaDevice, "Failed", "NoCudaDevice"),
    (SpecError, "Failed", "InvalidSpec"),
    (DataError, "Failed", "InvalidData"),
    (OutputConflict, "Failed", "OutputConflict"),
    (UserCodeError, "Failed", "UserCodeFailed"),
    (StorageUnavailable, "Lost", "StorageUnavailable"),
    (StorageError, "Lost", "StorageFailed"),
    (OutOfMemory, "Lost", "OutOfMemory"),
    (WorkerLost, "Lost", "WorkerLost"),
)
_DEATHS: Final = (
    ray_errors.RayActorError,
    ray_errors.WorkerCrashedError,
    ray_errors.NodeDiedError,
    ray_errors.LocalRayletDiedError,
    ray_errors.ObjectLostError,
    ray_errors.ObjectStoreFullError,
    ray_errors.OutOfDiskError,
    ray_errors.TaskUnschedulableError,
    ray_errors.ActorUnschedulableError,
)
_KILLED_BY_RAY: Final = re.compile(r"NODE_OUT_OF_MEMORY|low on memory|out of memory", re.IGNORECASE)
_REMOTE_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class FinishedRun:
    """How the work ended where it went well, and the dataset where it made one."""

    outcome: Outcome
    output: OutputStatus | None = None


EXIT_CODES: Final[dict[AttemptReason, int]] = {
    **{reason: kind.exit_code if state == "Failed" else 1 for kind, state, reason in _USER_ERRORS},
    "InternalError": DEFECT_EXIT_CODE,
    "Terminated": 1,
    "Succeeded": 0,
    "AlreadyFinished": 0,
    "Suspended": 0,
}
"""The driver's, by the reason of its outcome."""


def make_outcome(state: AttemptState, reason: AttemptReason, message: str) -> AttemptOutcome:
    """An outcome whose message is one line of at most 500 characters, without secrets."""
    text = " ".join(make_redactor()(message).split())
    if len(text) > MAX_MESSAGE_LENGTH:
        text = f"{text[: MAX_MESSAGE_LENGTH - 1]}…"
    return AttemptOutcome(state=state, reason=reason, message=text)


def classify(error: BaseException) -> AttemptOutcome:
    """What an attempt's error means.

    A user's mistake takes precedence over its consequences elsewhere; then the death of a Ray process; anything else
    is a bug in Hindcast.
    """
    causes = list(_causes(error))
    for cause in causes:
        for kind, state, reason in _USER_ERRORS:
            if isinstance(cause, kind):
                return make_outcome(state, reason, str(cause))
    for cause in causes:
        if isinstance(cause, ray_errors.RuntimeEnvSetupError):
            return make_outcome(
                "Failed", "InvalidSpec", f"spec.cluster.code.runtimeEnv could not be set up: {cause}"
            )
        if isinstance(cause, ray_errors.OutOfMemoryError) or _is_killed_by_ray(cause):
            return make_outcome(
                "Lost", "OutOfMemory", f"Ray killed a process because memory ran out: {cause}"
            )
        if isinstance(cause, _DEATHS):
            return make_outcome("Lost", "WorkerLost", f"a process or its node was lost: {cause}")
    root = causes[-1]
    return make_outcome(
        "Failed",
        "InternalError",
        f"this is a bug in Hindcast, not in your files: {type(root).__name__} at {_place(causes)}: {root}",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from: through tasks of Ray, and `raise … from`."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        inner = [getattr(found, "cause", None), found.__cause__]
        waiting += [cause for cause in inner if isinstance(cause, BaseException)]


def _is_killed_by_ray(error: BaseException) -> bool:
    """Ray's memory monitor kills actors like any other cause does; only the message shows it."""
    return isinstance(error, ray_errors.RayActorError) and bool(_KILLED_BY_RAY.search(str(error)))


def _place(causes: list[BaseException]) -> str:
    """file:line where it was raised: the innermost frame, of another process where it came from one."""
    for cause in reversed(causes):
        remote = _REMOTE_FRAME.findall(getattr(cause, "traceback_str", ""))
        if remote:
            return ":".join(remote[-1])
        frames = traceback.extract_tb(cause.__traceback__)
        if frames:
            return f"{frames[-1].filename}:{frames[-1].lineno}"
    return "an unknown place"
