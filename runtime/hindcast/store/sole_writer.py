"""One process at a time fills a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from hindcast.errors import OutputConflict, StorageError
from hindcast.store.filesystem import Guard, Location
from hindcast.store.lock_object import LockObject
from hindcast.store.storage_errors import storage_errors

LOCK_FILE = "lock"


@contextlib.contextmanager
def sole_writer(state: Location) -> Iterator[Guard | None]:
    """Keep other processes out of the folder while the block runs.

    On this machine the lock goes with the process, however it ends. In a store it is an object, that of a killed
    process lapses, and what is yielded is to guard every change.

    Raises:
        OutputConflict: another process is writing there.
    """
    if not state.is_local:
        with _held_in_store(state) as guard:
            yield guard
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


@contextlib.contextmanager
def _held_in_store(state: Location) -> Iterator[Guard]:
    lock, ended = LockObject(state.child(LOCK_FILE)), threading.Event()
    keeping = threading.Thread(target=lock.keep, args=(ended,), daemon=True)
    try:
        lock.take()
        keeping.start()
        yield lock.check
    except StorageError:  # a store that fails would be waited for once more: the lock lapses
        lock.forget()
        raise
    finally:
        ended.set()
        lock.give_back()


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
