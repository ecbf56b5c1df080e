"""What the operator learnt of attempts other than by watching; lost when it ends, and then learnt again."""

import asyncio
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hindcast_operator.control.kinds import Kind

_FIRST_TRY: Final = 5.0
_LONGEST_TRY: Final = 60.0
_PROBES: Final = (5.0, 10.0, 15.0, 30.0, 60.0)


class About(NamedTuple):
    """An attempt of a resource."""

    uid: str
    child: str


@dataclass
class Note:
    """What is known of one attempt.

    Attributes:
        conflict: an object that the attempt needs belongs to someone else: `Kind/name` and owner.
        blocker: kind and name of that object.
        refusal: why the API server refused one of its objects.
        submitter_failure: why the submitter's Job cannot make its pod.
        mount_failures: by pod, why a volume is not mounted.
        next_try: when to try the creation again, by the event loop's clock.
        next_probe: when to read events again.
    """

    conflict: str | None = None
    blocker: tuple[Kind, str] | None = None
    refusal: str | None = None
    submitter_failure: str | None = None
    mount_failures: dict[str, str] = field(default_factory=dict)
    next_try: float = 0.0
    next_probe: float = 0.0
    _tries: int = 0
    _probes: int = 0

    def waits(self) -> bool:
        """The creation failed a moment ago; it is not time to try it again."""
        return _now() < self.next_try

    def failed(self, conflict: str | None, refusal: str | None) -> bool:
        """The creation failed. Returns whether that is news."""
        news = (conflict, refusal) != (self.conflict, self.refusal)
        self.conflict, self.refusal = conflict, refusal
        self._tries += 1
        self.next_try = _now() + min(_FIRST_TRY * 2.0 ** (self._tries - 1), _LONGEST_TRY)
        return news

    def succeeded(self) -> bool:
        """All objects of the attempt are there. Returns whether that is news."""
        news = self.conflict is not None or self.refusal is not None
        self.conflict = self.refusal = self.blocker = None
        self._tries, self.next_try = 0, 0.0
        return news

    def blocker_to_check(self) -> tuple[Kind, str] | None:
        """The object that was in the way, when it is time to see whether it still is."""
        return None if self.waits() else self.blocker

    def probe_is_due(self) -> bool:
        """Whether it is time to read events again; the first time is a moment after the start was seen."""
        if not self.next_probe:
            self.probed()
            return False
        return _now() >= self.next_probe

    def probed(self) -> None:
        """Events were read, or need not be."""
        self.next_probe = _now() + _PROBES[min(self._probes, len(_PROBES) - 1)]
        self._probes += 1


class Notes:
    """Notes by attempt."""

    def __init__(self) -> None:
        self._notes: dict[About, Note] = {}

    def get(self, uid: str, child: str) -> Note:
        """The note of an attempt, a fresh one where nothing is known."""
        return self._notes.setdefault(About(uid, child), Note())

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        for about in [about for about in self._notes if about.uid == uid]:
            del self._notes[about]


def _now() -> float:
    return asyncio.get_running_loop().time()
