"""One process at a time fills a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from hindcast.errors import OutputConflict
from hindcast.store.filesystem import Guard, Location
from hindcast.store.storage_errors import storage_errors

LOCK_FILE = "lock"


@contextlib.contextmanager
def sole_writer(state: Location) -> Iterator[Guard | None]:
    """Keep other processes of this machine out of the folder while the block runs.

    The lock goes with the process, however it ends. Only local folders are locked.

    Raises:
        OutputConflict: another process is writing there.
    """
    if not state.is_local:
        yield None
        return
    state.mkdirs()
    path = Path(state.path) / LOCK_FILE
    with storage_errors("write", str(state), state.fs):
        descriptor = _lock(path)
    if descriptor is None:
        raise OutputConflict(f"another process is writing to {state}: wait for it, or stop it.")
    try:
        yield None
    finally:
        with contextlib.suppress(OSError):  # a file system that has become read-only
            path.unlink()
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock file's lock; None where another process holds it."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)  # its last holder removed it between our opening and locking it
