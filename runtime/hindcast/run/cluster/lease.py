"""Who may write to a run's folder: the attempt that began there last.

Pods share no locks, and one on a node that nobody reaches may work on unseen. So each attempt, when it begins, puts a
numbered mark into the folder; one that finds a higher number than its own has been superseded and changes nothing
there any more. It looks before each change, so what it can still do is finish the one request under way.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from hindcast.api.attempt import Attempt
from hindcast.errors import OutputConflict
from hindcast.store.filesystem import Location

ATTEMPTS = "attempts"
_MOST_TRIES = 10


@dataclass(frozen=True)
class Mark:
    """What an attempt leaves in the folder: who it is, and a word that no other process has."""

    uid: str
    revision: int
    attempt: int
    child: str
    token: str


class Lease:
    """The right to change what is in a folder, while no later attempt has begun there. It pickles.

    Args:
        folder: that holds the marks.
        number: of this lease's mark.
        mark: what it says.
    """

    def __init__(self, folder: Location, number: int, mark: Mark) -> None:
        self._folder = folder
        self._number = number
        self._mark = mark

    @classmethod
    def begin(cls, state: Location, attempt: Attempt) -> Lease:
        """Take the folder over from whoever had it.

        Args:
            state: folder of the run's own files (`_hindcast` of a dataset, the run folder of a training).
            attempt: who begins.

        Raises:
            OutputConflict: a later attempt of the same resource has begun here.
        """
        folder = state.child(ATTEMPTS)
        mark = Mark(attempt.uid, attempt.revision, attempt.number, attempt.child, uuid.uuid4().hex)
        for _ in range(_MOST_TRIES):
            number, holder = _last(folder)
            if holder is not None and _is_later(holder, mark):
                raise OutputConflict(_superseded(state, holder))
            lease = cls(folder, number + 1, mark)
            folder.mkdirs()
            lease._file(number + 1).create_exclusive(json.dumps(asdict(mark)).encode())
            if _read(lease._file(number + 1)) == mark:
                return lease
        raise OutputConflict(f"{state} is being taken over by other runs again and again: stop all but one.")

    def check(self) -> None:
        """Look whether the right still stands: a few small requests.

        Raises:
            OutputConflict: a later attempt has begun here.
        """
        following = _read(self._file(self._number + 1))
        if following is not None:
            raise OutputConflict(_superseded(self._folder.parent(), following))
        mark = _read(self._file(self._number))
        if mark != self._mark:
            raise OutputConflict(_superseded(self._folder.parent(), mark))

    def _file(self, number: int) -> Location:
        return self._folder.child(f"{number:06d}.json")


def holder(state: Location) -> Mark | None:
    """Who began last in a run's folder; None where nobody has."""
    return _last(state.child(ATTEMPTS))[1]


def _last(folder: Location) -> tuple[int, Mark | None]:
    """The highest mark with its number; 0 where there is none."""
    numbers = [int(stem) for entry in folder.files() if (stem := entry.relative.partition(".")[0]).isdigit()]
    number = max(numbers, default=0)
    return number, _read(folder.child(f"{number:06d}.json")) if number else None


def _read(file: Location) -> Mark | None:
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_bytes())
    return Mark(**found)


def _is_later(found: Mark, own: Mark) -> bool:
    return found.uid == own.uid and (found.revision, found.attempt) > (own.revision, own.attempt)


def _superseded(state: Location, by: Mark | None) -> str:
    who = f"the attempt {by.child}" if by else "another run"
    return (
        f"{state} was taken over by {who}, which began later: this one has stopped, and writes nothing more."
    )
