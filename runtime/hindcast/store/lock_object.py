"""A lock where there are no locks: an object that its holder writes again and again, and that lapses when it stops.

A store puts objects without conditions, so of two that begin in the same moment both may believe they hold it. Each
looks again before every change: the one whose object stands goes on, the other one stops.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from hindcast.errors import DataError, OutputConflict, UserError
from hindcast.store.filesystem import Location

_RENEWED_EVERY_S: Final = 20.0
_LAPSES_AFTER_S: Final = 180.0
_LOOKS: Final = 3  # what is renewed while it is read may seem to be gone
_held: set[str] = set()


class _Holder(NamedTuple):
    """What the object says: a word of the holder's own, its machine and process, and when it last wrote this."""

    token: str
    machine: str
    process: int
    renewed: float


class LockObject:
    """The right to change what is in a folder.

    Args:
        place: of the object.
    """

    def __init__(self, place: Location) -> None:
        self._place = place
        self._token = uuid.uuid4().hex

    def take(self) -> None:
        """Put the object there.

        Raises:
            OutputConflict: somebody else holds it.
        """
        found = _read(self._place)
        if found is not None and _is_alive(found):
            raise OutputConflict(
                f"another process ({found.process} on {found.machine.split()[0]}) is writing to "
                f"{self._place.parent()}: wait for it, or stop it. One that was killed there lapses in "
                f"{max(1, round(found.renewed + _LAPSES_AFTER_S - time.time()))} seconds."
            )
        _held.add(self._token)
        self._write()
        self.check()

    def check(self) -> None:
        """Look whether the right still stands: one small request.

        Raises:
            OutputConflict: another process has taken it.
        """
        found = _read(self._place)
        if found is None or found.token != self._token:
            raise OutputConflict(
                f"another process has begun to write to {self._place.parent()}: this one has stopped, and writes "
                "nothing more there."
            )

    def keep(self, ended: threading.Event) -> None:
        """Write it again every while, until `ended` or somebody else has it."""
        while not ended.wait(_RENEWED_EVERY_S):
            try:
                self.check()
                self._write()
            except OutputConflict:
                return
            except UserError:  # the store may be back the next time
                continue

    def forget(self) -> None:
        """Hold it no more, and leave the object."""
        _held.discard(self._token)

    def give_back(self) -> None:
        """Remove the object, if it is still ours and not forgotten."""
        if self._token not in _held:
            return
        self.forget()
        with suppress(UserError):
            self.check()
            self._place.delete()

    def _write(self) -> None:
        holder = _Holder(self._token, _machine(), os.getpid(), time.time())
        self._place.write_bytes(orjson.dumps(holder._asdict()))


def _read(place: Location) -> _Holder | None:
    """Who holds it; None where nobody does, or the object is none of ours."""
    for _ in range(_LOOKS):
        with suppress(DataError, ValueError, TypeError):
            return _Holder(**orjson.loads(place.read_bytes()))
    return None


def _is_alive(holder: _Holder) -> bool:
    """Whether a holder may still be at work: of those on this machine we know, others have to have lapsed."""
    if holder.machine != _machine():
        return time.time() - holder.renewed < _LAPSES_AFTER_S
    if holder.process == os.getpid():
        return holder.token in _held
    try:
        os.kill(holder.process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return time.time() - holder.renewed < _LAPSES_AFTER_S


@cache
def _machine() -> str:
    """What sees the same processes by the same numbers: containers of one machine do not."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)
