"""Who may write to a folder: one process at a time, on every kind of storage.

A lease is a folder of numbered marks, each created on the condition that it is not there; the highest number holds
the right. So of any that take it in one moment exactly one wins, and whoever was superseded finds a higher number than
its own when it looks again, which it does before every change.
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
"""Tokens of the leases that this process holds."""

Mark = dict[str, Any]


@dataclass(frozen=True)
class Lease:
    """The right to change what is in a folder, until another mark has a higher number. It pickles.

    Attributes:
        superseded: the error to raise when it was lost, given the mark that took it over, if there is one.
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
        """Put a mark into the folder, with the next number.

        Args:
            mark: its content, with a unique `token`.
            may_take: called with the folder and the mark of the present holder; raises if that one stays.
            superseded: see the class.

        Raises:
            OutputConflict: others keep taking it.
        """
        for _ in range(_MAX_TRIES):
            number, holder = newest_mark(folder)
            if holder is not None:
                check_holder(folder, holder)
            if _mark_location(folder, number + 1).create_exclusive(orjson.dumps(mark)):
                return cls(folder, number + 1, mark["token"], lost_error)
        raise OutputConflict(f"{folder.parent()} is repeatedly taken over by other runs: stop all but one.")

    def check(self) -> None:
        """Check that the right still stands: one small request, two if marks may overwrite each other.

        Raises:
            OutputConflict: another process has taken it.
        """
        number = max(_mark_numbers(self.folder), default=0)
        if number == self.number and not self.folder.backend.is_foreign:
            return
        mark = _read_mark(self.folder, number) if number else None
        if mark is None or mark["token"] != self.token:
            raise self.lost_error(self.folder, mark)

    def write(self, mark: Mark) -> None:
        """Replace what the mark says."""
        _mark_location(self.folder, self.number).write_bytes(orjson.dumps(mark))

    def remove_older(self) -> None:
        """Delete the marks that do not count any more."""
        for number in _mark_numbers(self.folder):
            if number < self.number:
                _mark_location(self.folder, number).delete()

    def release(self) -> None:
        """Give the right back."""
        self.check()
        _mark_location(self.folder, self.number).delete()


def newest_mark(folder: Location) -> tuple[int, Mark | None]:
    """The highest number in a folder of marks, and what its mark says; 0 where there is none."""
    number = max(_mark_numbers(folder), default=0)
    return number, _read_mark(folder, number) if number else None


@contextlib.contextmanager
def sole_writer(state: Location) -> Iterator[Guard | None]:
    """Keep other processes out of the folder while the block runs, without what killed ones left half-written.

    On this machine a lock of the kernel's goes with the process, however it ends. In a store it is a lease that is
    renewed; that of a killed process lapses, and what is yielded is to guard every change.

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
        except StorageError:  # the store would be waited for once more: the lease lapses
            has_failed = True
            raise
        finally:
            stop_event.set()
            if not has_failed:
                renewal_thread.join()  # a renewal under way would put the mark there again
                with contextlib.suppress(UserError):  # it lapses
                    lease.release()
    finally:
        stop_event.set()
        _held_tokens.discard(token)


def _renew(lease: Lease, stop_event: threading.Event) -> None:
    """Renew the mark regularly, until the lease has ended or another process has it."""
    while not stop_event.wait(_RENEWAL_INTERVAL_SECONDS):
        try:
            lease.check()
            lease.write(_mark(lease.token))
        except OutputConflict:
            return
        except UserError:  # the store may be back the next time
            continue


def _mark(token: str) -> Mark:
    """Who holds a lease: a unique token, machine and process, and when it last wrote this."""
    return {"token": token, "machine": _machine(), "process": os.getpid(), "renewed": time.time()}


def _refuse_while_alive(folder: Location, holder: Mark) -> None:
    if not _is_alive(holder):
        return
    remaining_seconds = max(1, round(holder["renewed"] + _LEASE_SECONDS - time.time()))
    raise OutputConflict(
        f"another process ({holder['process']} on {holder['machine'].split()[0]}) is writing to "
        f"{folder.parent()}: wait for it, or stop it. If it was killed, its lease lapses in {remaining_seconds} seconds."
    )


def _lost_error(folder: Location, _: Mark | None) -> OutputConflict:
    return OutputConflict(
        f"another process has begun to write to {folder.parent()}: this one has stopped writing."
    )


def _is_alive(holder: Mark) -> bool:
    """Whether a holder may still be running: known on this machine; elsewhere until its lease lapses."""
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
    return not has_lapsed


def _mark_location(folder: Location, number: int) -> Location:
    return folder.child(f"{number:06d}.json")


def _mark_numbers(folder: Location) -> list[int]:
    return [
        int(stem) for entry in folder.files() if (stem := entry.relative_path.partition(".")[0]).isdigit()
    ]


def _read_mark(folder: Location, number: int) -> Mark | None:
    """What a mark says; None if it is gone, or is not ours."""
    with contextlib.suppress(DataError, ValueError):
        mark = orjson.loads(_mark_location(folder, number).read_bytes())
        return mark if isinstance(mark, dict) else None
    return None


@cache
def _machine() -> str:
    """What sees the same processes by the same numbers: containers of one machine do not."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock file's lock; None if another process holds it."""
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
