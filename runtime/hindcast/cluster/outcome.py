"""Classification of errors: the outcome of an attempt, whether to retry it, and the message for people."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import ray.exceptions as ray_errors

from hindcast.api.attempt import AttemptOutcome, AttemptReason, AttemptState
from hindcast.api.status import CheckpointStatus, OutputStatus
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
"""Exit code after a bug in Hindcast."""

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
"""(class, state, reason): the first row that matches classifies an error, so subclasses come before their parents."""
_DEATH_ERRORS: Final = (
    ray_errors.RayActorError,
    ray_errors.WorkerCrashedError,
    ray_errors.NodeDiedError,
    ray_errors.LocalRayletDiedError,
    ray_errors.ObjectLostError,
    ray_errors.ObjectStoreFullError,
    ray_errors.OutOfDiskError,
    ray_errors.TaskUnschedulableError,
    ray_errors.ActorUnschedulableError,
    ray_errors.RaySystemError,
    ray_errors.RpcError,
    ray_errors.GetTimeoutError,
)
"""Errors of Ray after which a process or its node is lost, or does not answer."""
_RAY_KILL_MESSAGE: Final = re.compile(r"NODE_OUT_OF_MEMORY|low on memory|out of memory", re.IGNORECASE)
_REMOTE_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
"""A frame in the formatted traceback of another process."""


@dataclass(frozen=True)
class FinishedRun:
    """Result of a task that succeeded: its outcome, and the dataset or the checkpoints."""

    outcome: Outcome
    output: OutputStatus | None = None
    checkpoint: CheckpointStatus | None = None


EXIT_CODES: Final[dict[str, int]] = {
    **{
        reason: error_class.exit_code if state == "Failed" else 1
        for error_class, state, reason in _USER_ERRORS
    },
    "InternalError": DEFECT_EXIT_CODE,
    "Terminated": 1,
    "Succeeded": 0,
    "AlreadyFinished": 0,
    "Suspended": 0,
}
"""Reason of an outcome -> exit code of the driver."""


def make_outcome(state: AttemptState, reason: AttemptReason, message: str) -> AttemptOutcome:
    """Create an outcome; its message is cut to one line of at most 500 characters, without secrets."""
    text = " ".join(make_redactor()(message).split())
    if len(text) > MAX_MESSAGE_LENGTH:
        text = f"{text[: MAX_MESSAGE_LENGTH - 1]}…"
    return AttemptOutcome(state=state, reason=reason, message=text)


def classify(error: BaseException) -> AttemptOutcome:
    """Convert an attempt's error to its outcome.

    A `UserError` among the causes decides, because errors of other processes may be its consequences; without one, the
    death of a Ray process decides. Any other error is a bug in Hindcast.
    """
    causes = list(_iterate_causes(error))
    for cause in causes:
        for error_class, state, reason in _USER_ERRORS:
            if isinstance(cause, error_class):
                return make_outcome(state, reason, str(cause))
    for cause in causes:
        if isinstance(cause, ray_errors.RuntimeEnvSetupError):
            # Each new node sets it up again, so a package index that does not answer may end a long run. A setup that
            # fails on the head, before the driver starts, is retried too.
            return make_outcome(
                "Lost", "WorkerLost", f"spec.cluster.code.runtimeEnv could not be set up: {cause}"
            )
        if isinstance(cause, ray_errors.OutOfMemoryError) or _is_killed_by_ray(cause):
            return make_outcome(
                "Lost", "OutOfMemory", f"Ray killed a process because memory ran out: {cause}"
            )
        if isinstance(cause, _DEATH_ERRORS):
            return make_outcome("Lost", "WorkerLost", f"a process or its node was lost: {cause}")
    root_cause = causes[-1]
    return make_outcome(
        "Failed",
        "InternalError",
        f"this is a bug in Hindcast, not in your files: {type(root_cause).__name__} at {_error_location(causes)}: "
        f"{root_cause}",
    )


def _iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, through Ray tasks and `raise … from`."""
    seen_ids: set[int] = set()
    queue = [error]
    while queue:
        cause = queue.pop(0)
        if id(cause) in seen_ids:
            continue
        seen_ids.add(id(cause))
        yield cause
        direct_causes = [getattr(cause, "cause", None), cause.__cause__]
        queue += [direct_cause for direct_cause in direct_causes if isinstance(direct_cause, BaseException)]


def _is_killed_by_ray(error: BaseException) -> bool:
    """Return True if Ray's memory monitor killed the actor."""
    # Ray raises the same error for every death of an actor; only the message names memory.
    return isinstance(error, ray_errors.RayActorError) and bool(_RAY_KILL_MESSAGE.search(str(error)))


def _error_location(causes: list[BaseException]) -> str:
    """Return file:line where the error was raised: the innermost frame, in the process that raised it."""
    for cause in reversed(causes):
        remote_frames = _REMOTE_FRAME.findall(getattr(cause, "traceback_str", None) or "")
        if remote_frames:
            return ":".join(remote_frames[-1])
        frames = traceback.extract_tb(cause.__traceback__)
        if frames:
            return f"{frames[-1].filename}:{frames[-1].lineno}"
    return "an unknown location"
