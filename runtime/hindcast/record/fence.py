"""Keeps a recording separate from the runners of an earlier one that was killed and may still write.

A runner in a separate process holds a shared lock on the folder of commits as long as it lives; a new recording
waits until nobody holds it. Otherwise a runner that outlived its driver by a moment could commit a file that
the next driver has just deleted as an orphan. Where the folder has a guard there are no locks: it refuses such a
commit, also on machines and file systems whose locks nobody else would see.
"""

from __future__ import annotations

import fcntl
import os
import time

from hindcast.errors import OutputConflict
from hindcast.formats.dataset_folder.commits import COMMITS
from hindcast.storage.location import Location

_LONGEST_WAIT_S = 60.0
_LOOK_S = 0.05


def join_runners(folder: Location) -> int | None:
    """Count this process among the runners of a dataset's folder, until it ends.

    Returns:
        The descriptor that holds the lock; None on file systems other than the local one, and under a guard.
    """
    descriptor = _open(folder)
    if descriptor is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def wait_for_runners(folder: Location) -> None:
    """Wait until no runner of an earlier recording is left; they end within moments of their driver.

    Raises:
        OutputConflict: some do not.
    """
    descriptor = _open(folder)
    if descriptor is None:
        return
    deadline = time.monotonic() + _LONGEST_WAIT_S
    try:
        while not _is_free(descriptor):
            if time.monotonic() > deadline:
                raise OutputConflict(
                    f"runners of an earlier run still write to {folder}: wait for them, or stop them."
                )
            time.sleep(_LOOK_S)
    finally:
        os.close(descriptor)


def _open(folder: Location) -> int | None:
    if not folder.is_local or folder.guard is not None:
        return None
    commits = folder.child(COMMITS)
    commits.mkdirs()
    return os.open(commits.path, os.O_RDONLY)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
