"""Leases: one process at a time may write to a folder, on every kind of storage.

A lease is a folder of numbered marks. A mark is created only if its number does not exist yet, and the highest number
holds the lease. If several processes acquire it at the same moment, exactly one wins. A process that lost it finds a
higher number than its own at the next check, and every change is preceded by a check.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

from hindcast.errors import DataError, OutputConflict, StorageError, UserError
from hindcast.storage.failures import storage_errors
from hindcast.storage.location import Guard, Location, remove_temporary_files

LOCK: Final = "lock"
_RENEWAL_INTERVAL_SECONDS: Final = 20.0
_LEASE_SECONDS: Final = 180.0
_MAX_TRIES: Final = 10
_held_tokens: set[str] = set()
"""Tokens of the leases held by this process."""

Mark = dict[str, Any]


@dataclass(frozen=True)
class Lease:
    """The lease on a folder, valid until another mark has a higher number; it can be pickled.

    Attributes:
        folder: the folder of marks.
        number: number of this lease's mark.
        token: unique token in the mark.
        lost_error: makes the error to raise when the lease is lost, from the folder and the new holder's mark (None if
            it is gone).
    """

    folder: Location
    number: int
    token: str
    lost_error: Callable[[Location, Mark | None], Exception]

    @classmethod
    def acquire(
        cls,
        folder: Location,
        mark: Mark,
        check_holder: Callable[[Location, Mark], None],
        lost_error: Callable[[Location, Mark | None], Exception],
    ) -> Lease:
        """Acquire the lease by creating the mark with the next number.

        Args:
            folder: the folder of marks.
            mark: content of the mark, with a unique `token`.
            check_holder: called with the folder and the current holder's mark; raises if that lease is still valid.
            lost_error: see the class.

        Raises:
            OutputConflict: other processes acquired the lease in every attempt.
        """
        for _ in range(_MAX_TRIES):
            number, holder = newest_mark(folder)
            if holder is not None:
                check_holder(folder, holder)
            if _mark_location(folder, number + 1).create_exclusive(orjson.dumps(mark)):
                return cls(folder, number + 1, mark["token"], lost_error)
        raise OutputConflict(f"other runs repeatedly take over {folder.parent()}: stop all but one.")

    def check(self) -> None:
        """Check that this lease is still the newest.

        It takes one small request, or two on storage where marks may overwrite each other.

        Raises:
            OutputConflict: another process has acquired the lease.
        """
        number = max(_mark_numbers(self.folder), default=0)
        if number == self.number and not self.folder.backend.is_foreign:
            return
        mark = _read_mark(self.folder, number) if number else None
        if mark is None or mark["token"] != self.token:
            raise self.lost_error(self.folder, mark)

    def write(self, mark: Mark) -> None:
        """Replace the content of the mark."""
        _mark_location(self.folder, self.number).write_bytes(orjson.dumps(mark))

    def remove_older(self) -> None:
        """Delete the marks with lower numbers."""
        for number in _mark_numbers(self.folder):
            if number < self.number:
                _mark_location(self.folder, number).delete()

    def release(self) -> None:
        """Release the lease."""
        self.check()
        _mark_location(self.folder, self.number).delete()


def newest_mark(folder: Location) -> tuple[int, Mark | None]:
    """Return the highest number in a folder of marks and the content of that mark; 0 and None if it is empty."""
    number = max(_mark_numbers(folder), default=0)
    return number, _read_mark(folder, number) if number else None


@contextlib.contextmanager
def sole_writer(state: Location) -> Iterator[Guard | None]:
    """Keep other processes out of a folder while the block runs.

    A local folder is locked by the kernel, which releases the lock however the process ends; temporary files of killed
    processes are removed. In a store the lock is a lease that is renewed in the background and lapses if the process
    is killed.

    Yields:
        A guard to call before every change in a store; None for a local folder.

    Raises:
        OutputConflict: another process is writing there.
    """
    if not state.is_local:
        with _lease_in_store(state) as guard:
            yield guard
        return
    state.mkdirs()
    path = Path(state.path) / LOCK
    with storage_errors("write", state):
        descriptor = _lock(path)
    if descriptor is None:
        raise OutputConflict(f"another process is writing to {state}: wait for it, or stop it.")
    try:
        remove_temporary_files(state)
        yield None
    finally:
        with contextlib.suppress(OSError):  # a file system that has become read-only
            path.unlink()
        os.close(descriptor)


@contextlib.contextmanager
def _lease_in_store(state: Location) -> Iterator[Guard]:
    token = uuid.uuid4().hex
    _held_tokens.add(token)
    stop_event = threading.Event()
    try:
        lease = Lease.acquire(state.child(LOCK), _mark(token), _refuse_while_alive, _lost_error)
        lease.remove_older()
        renewal_thread = threading.Thread(
            target=_renew, args=(lease, stop_event), name="hindcast-lease", daemon=True
        )
        renewal_thread.start()
        has_failed = False
        try:
            yield lease.check
        except StorageError:  # releasing would wait for the failing store once more: let the lease lapse
            has_failed = True
            raise
        finally:
            stop_event.set()
            if not has_failed:
                renewal_thread.join()  # a renewal in progress would write the deleted mark again
                with contextlib.suppress(UserError):  # the lease lapses by itself
                    lease.release()
    finally:
        stop_event.set()
        _held_tokens.discard(token)


def _renew(lease: Lease, stop_event: threading.Event) -> None:
    """Renew the mark regularly, until the lease is released or lost."""
    while not stop_event.wait(_RENEWAL_INTERVAL_SECONDS):
        try:
            lease.check()
            lease.write(_mark(lease.token))
        except OutputConflict:
            return
        except UserError:  # the store may answer the next time
            continue


def _mark(token: str) -> Mark:
    """Make the content of a mark: token, machine, process and the time of the renewal."""
    return {"token": token, "machine": _machine(), "process": os.getpid(), "renewed": time.time()}


def _refuse_while_alive(folder: Location, holder: Mark) -> None:
    if not _is_alive(holder):
        return
    remaining_seconds = max(1, round(holder["renewed"] + _LEASE_SECONDS - time.time()))
    raise OutputConflict(
        f"another process ({holder['process']} on {holder['machine'].split()[0]}) is writing to "
        f"{folder.parent()}: wait for it, or stop it. If it was killed, its lease lapses in "
        f"{remaining_seconds} seconds."
    )


def _lost_error(folder: Location, _: Mark | None) -> OutputConflict:
    return OutputConflict(
        f"another process has begun to write to {folder.parent()}, so this process has stopped writing."
    )


def _is_alive(holder: Mark) -> bool:
    """Return True if the holder may still run: known on this machine, elsewhere assumed until its lease lapses."""
    has_lapsed = time.time() - holder["renewed"] >= _LEASE_SECONDS
    if holder["machine"] != _machine():
        return not has_lapsed
    if holder["process"] == os.getpid():
        return holder["token"] in _held_tokens
    try:
        os.kill(holder["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # Another process may have got the number of one that was killed.
    return not has_lapsed


def _mark_location(folder: Location, number: int) -> Location:
    return folder.child(f"{number:06d}.json")


def _mark_numbers(folder: Location) -> list[int]:
    return [
        int(stem) for entry in folder.files() if (stem := entry.relative_path.partition(".")[0]).isdigit()
    ]


def _read_mark(folder: Location, number: int) -> Mark | None:
    """Read a mark; None if it is gone or not a mark."""
    with contextlib.suppress(DataError, ValueError):
        mark = orjson.loads(_mark_location(folder, number).read_bytes())
        return mark if isinstance(mark, dict) else None
    return None


@cache
def _machine() -> str:
    """Identify the process namespace: containers of one machine do not share process numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _lock(path: Path) -> int | None:
    """Lock the file and return its descriptor; None if another process holds the lock."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)  # the previous holder deleted the file between our open and our lock
