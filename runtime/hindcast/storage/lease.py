"""Leases, which let only one process at a time write to a folder, on every kind of storage.

A lease is a folder of numbered files, the marks. A mark is created only if its number does not exist yet, and the
process that created the highest number holds the lease. If several processes try to acquire the lease at the same
moment, exactly one succeeds; on a foreign backend (`Backend.is_foreign`), several may succeed until their next check.
Before every change the holder checks that no mark has a higher number than its own.
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
"""Name of the lock in a folder: a file on a local disk, a folder of marks in a store."""
_RENEWAL_INTERVAL_SECONDS: Final = 20.0
_LEASE_SECONDS: Final = 180.0
"""Age of a mark at which its lease lapses: the holder has then missed eight renewals in a row."""
_MAX_TRIES: Final = 10
_held_tokens: set[str] = set()
"""Tokens of the leases held by this process."""

Mark = dict[str, Any]
"""JSON content of a mark. `token` is unique. The other keys are different for runs and for `sole_writer`."""


@dataclass(frozen=True)
class Lease:
    """The lease on a folder, which is valid until a mark with a higher number exists; it can be pickled.

    Attributes:
        folder: the folder of marks.
        number: number of this lease's mark.
        token: unique token in the mark.
        make_lost_error: makes the error that `check` raises if the lease is lost. Its arguments are the folder and the
            new holder's mark (None if the mark does not exist).
    """

    folder: Location
    number: int
    token: str
    make_lost_error: Callable[[Location, Mark | None], Exception]

    @classmethod
    def acquire(
        cls,
        folder: Location,
        mark: Mark,
        check_holder: Callable[[Location, Mark], None],
        make_lost_error: Callable[[Location, Mark | None], Exception],
    ) -> Lease:
        """Acquire the lease by creating the mark with the next number.

        Args:
            folder: the folder of marks.
            mark: content of the mark, with a unique `token`.
            check_holder: called with the folder and the current holder's mark; raises if the holder's lease is valid.
            make_lost_error: see the class.

        Raises:
            OutputConflict: in each of ten tries another process acquired the lease first.
        """
        for _ in range(_MAX_TRIES):
            number, holder = newest_mark(folder)
            if holder is not None:
                check_holder(folder, holder)
            if _mark_location(folder, number + 1).create_exclusive(orjson.dumps(mark)):
                return cls(folder, number + 1, mark["token"], make_lost_error)
        raise OutputConflict(f"other processes repeatedly take over {folder.parent()}: stop all but one.")

    def check(self) -> None:
        """Check that this lease is still the newest.

        This takes one small request, or two on storage where marks may overwrite each other.

        Raises:
            Exception: another process has acquired the lease; `make_lost_error` makes the exception.
        """
        number = max(_mark_numbers(self.folder), default=0)
        if number == self.number and not self.folder.backend.is_foreign:
            return
        mark = _read_mark(self.folder, number) if number else None
        if mark is None or mark["token"] != self.token:
            raise self.make_lost_error(self.folder, mark)

    def write(self, mark: Mark) -> None:
        """Replace the content of this lease's mark."""
        _mark_location(self.folder, self.number).write_bytes(orjson.dumps(mark))

    def remove_older(self) -> None:
        """Delete the marks with lower numbers."""
        for number in _mark_numbers(self.folder):
            if number < self.number:
                _mark_location(self.folder, number).delete()

    def release(self) -> None:
        """Release the lease by deleting its mark.

        Raises:
            Exception: the lease is lost; see `check`.
        """
        self.check()
        _mark_location(self.folder, self.number).delete()


def newest_mark(folder: Location) -> tuple[int, Mark | None]:
    """Return number and content of the mark with the highest number; 0 and None if the folder has no marks."""
    number = max(_mark_numbers(folder), default=0)
    return number, _read_mark(folder, number) if number else None


@contextlib.contextmanager
def sole_writer(state_folder: Location) -> Iterator[Guard | None]:
    """Keep other processes from writing to a folder during a `with` block.

    A local folder is locked by the kernel, which releases the lock even if the process is killed; temporary files of
    killed processes are removed. In a store the lock is a lease, which a thread renews; if the process is killed, the
    lease lapses.

    Args:
        state_folder: the folder of Hindcast's own files, for which the lock is created.

    Yields:
        A guard to call before every change in a store; None for a local folder.

    Raises:
        OutputConflict: another process is writing to the folder.
    """
    if not state_folder.is_local:
        with _lease_in_store(state_folder) as guard:
            yield guard
        return
    state_folder.mkdirs()
    path = Path(state_folder.path) / LOCK
    with storage_errors("write", state_folder):
        descriptor = _lock_file(path)
    if descriptor is None:
        raise OutputConflict(f"another process is writing to {state_folder}: wait for it, or stop it.")
    try:
        remove_temporary_files(state_folder)
        yield None
    finally:
        with contextlib.suppress(OSError):  # the file system may have become read-only
            path.unlink()
        os.close(descriptor)


@contextlib.contextmanager
def _lease_in_store(state_folder: Location) -> Iterator[Guard]:
    token = uuid.uuid4().hex
    _held_tokens.add(token)
    stop_event = threading.Event()
    try:
        lease = Lease.acquire(
            state_folder.child(LOCK), _make_mark(token), _refuse_while_alive, _make_lost_error
        )
        lease.remove_older()
        renewal_thread = threading.Thread(
            target=_renew, args=(lease, stop_event), name="hindcast-lease", daemon=True
        )
        renewal_thread.start()
        has_failed = False
        try:
            yield lease.check
        except StorageError:  # releasing the lease would wait for the failing store again, so let it lapse
            has_failed = True
            raise
        finally:
            stop_event.set()
            if not has_failed:
                renewal_thread.join()  # a renewal in progress would write the deleted mark again
                with contextlib.suppress(UserError):  # if this fails, the lease lapses
                    lease.release()
    finally:
        stop_event.set()
        _held_tokens.discard(token)


def _renew(lease: Lease, stop_event: threading.Event) -> None:
    """Renew the mark regularly, until the lease is released or lost."""
    while not stop_event.wait(_RENEWAL_INTERVAL_SECONDS):
        try:
            lease.check()
            lease.write(_make_mark(lease.token))
        except OutputConflict:
            return
        except UserError:  # the next renewal may succeed
            continue


def _make_mark(token: str) -> Mark:
    """Make the content of a mark: token, machine, process and time of the last renewal."""
    return {"token": token, "machine": _machine_id(), "process": os.getpid(), "renewed": time.time()}


def _refuse_while_alive(folder: Location, holder: Mark) -> None:
    if not _is_alive(holder):
        return
    remaining_seconds = max(1, round(holder["renewed"] + _LEASE_SECONDS - time.time()))
    raise OutputConflict(
        f"another process ({holder['process']} on {holder['machine'].split()[0]}) is writing to "
        f"{folder.parent()}: wait for it, or stop it. If it was killed, its lease lapses in "
        f"{remaining_seconds} seconds."
    )


def _make_lost_error(folder: Location, _: Mark | None) -> OutputConflict:
    return OutputConflict(
        f"another process has begun to write to {folder.parent()}, so this process has stopped writing."
    )


def _is_alive(holder: Mark) -> bool:
    """Return whether the holder may still be running.

    On this machine the process is looked up; on other machines it counts as running until its lease lapses.
    """
    has_lapsed = time.time() - holder["renewed"] >= _LEASE_SECONDS
    if holder["machine"] != _machine_id():
        return not has_lapsed
    if holder["process"] == os.getpid():
        return holder["token"] in _held_tokens
    try:
        os.kill(holder["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # If the holder was killed, a new process may have the same process ID.
    return not has_lapsed


def _mark_location(folder: Location, number: int) -> Location:
    return folder.child(f"{number:06d}.json")


def _mark_numbers(folder: Location) -> list[int]:
    return [
        int(stem) for entry in folder.files() if (stem := entry.relative_path.partition(".")[0]).isdigit()
    ]


def _read_mark(folder: Location, number: int) -> Mark | None:
    """Read the content of a mark; None if the mark does not exist or is invalid."""
    with contextlib.suppress(DataError, ValueError):
        mark = orjson.loads(_mark_location(folder, number).read_bytes())
        return mark if isinstance(mark, dict) else None
    return None


@cache
def _machine_id() -> str:
    """Return the host name, boot ID and process namespace: containers on one machine do not share process IDs."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _lock_file(path: Path) -> int | None:
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
        # The previous holder deleted the file after it was opened here and before it was locked.
        os.close(descriptor)
