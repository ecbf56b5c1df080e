"""Who may write to a run's folder: the attempt that started there last.

Pods share no locks, and one on an unreachable node may keep working unseen. So each attempt takes the folder's lease
over from earlier ones, and a superseded attempt stops writing: it checks before each change, and can at most finish
the request in progress.
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
    """Take the folder over from whoever had it.

    Args:
        state: folder of the run's own files (`_hindcast` of a dataset, the run folder of a training).

    Raises:
        OutputConflict: a later attempt of the same resource has begun here.
    """
    mark = {
        "uid": attempt.uid,
        "revision": attempt.revision,
        "attempt": attempt.number,
        "child": attempt.ray_job_name,
        "token": uuid.uuid4().hex,
    }

    def refuse_earlier(folder: Location, holder: dict[str, Any]) -> None:
        is_later = (holder["revision"], holder["attempt"]) > (mark["revision"], mark["attempt"])
        if holder["uid"] == mark["uid"] and is_later:
            raise _superseded(folder, holder)

    folder = state.child(ATTEMPTS)
    folder.mkdirs()
    return Lease.acquire(folder, mark, refuse_earlier, _superseded)


def lease_holder(state: Location) -> dict[str, Any] | None:
    """The mark of the latest attempt in a run's folder; None if there is none."""
    return newest_mark(state.child(ATTEMPTS))[1]


def _superseded(folder: Location, by: dict[str, Any] | None) -> OutputConflict:
    who = f"the attempt {by['child']}" if by else "another run"
    return OutputConflict(
        f"{folder.parent()} was taken over by {who}, which began later: this process has stopped writing."
    )
