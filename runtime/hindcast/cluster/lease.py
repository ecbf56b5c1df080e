"""The lease of a run's folder, which the latest attempt holds.

Pods share no locks, and a pod on an unreachable node may keep working unseen. So each attempt takes over the folder's
lease from earlier attempts. A superseded attempt stops writing: it checks the lease before each change, and can at most
finish a request that is already in flight.
"""

from __future__ import annotations

import uuid
from typing import Any

from hindcast.api.attempt import Attempt
from hindcast.errors import OutputConflict
from hindcast.run.claim import ATTEMPTS
from hindcast.storage.lease import Lease, newest_mark
from hindcast.storage.location import Location


def acquire_lease(state: Location, attempt: Attempt) -> Lease:
    """Acquire the folder's lease from its current holder.

    Args:
        state: folder of the run's own files (`_hindcast` of a dataset, the run folder of a training).
        attempt: the attempt that will write.

    Raises:
        OutputConflict: a later attempt of the same resource has started in this folder.
    """
    # The token differs between two executions of one attempt, so that Ray's retry of a task supersedes the lost task.
    mark = {
        "uid": attempt.uid,
        "revision": attempt.revision,
        "attempt": attempt.number,
        "child": attempt.ray_job_name,
        "token": uuid.uuid4().hex,
    }

    def refuse_later_holder(folder: Location, holder: dict[str, Any]) -> None:
        is_holder_later = (holder["revision"], holder["attempt"]) > (mark["revision"], mark["attempt"])
        if holder["uid"] == mark["uid"] and is_holder_later:
            raise _superseded_error(folder, holder)

    folder = state.child(ATTEMPTS)
    folder.mkdirs()
    return Lease.acquire(folder, mark, refuse_later_holder, _superseded_error)


def read_lease_holder(state: Location) -> dict[str, Any] | None:
    """Return the mark of the latest attempt in a run's folder, or None if no attempt has started there."""
    return newest_mark(state.child(ATTEMPTS))[1]


def _superseded_error(folder: Location, successor: dict[str, Any] | None) -> OutputConflict:
    owner = f"the attempt {successor['child']}" if successor else "another run"
    return OutputConflict(
        f"{folder.parent()} was taken over by {owner}, which started later: this process has stopped writing."
    )
