"""Messages between the pools and the driver: a small actor on the head that both sides know.

The driver sits on the head and only supervises; runners and learners work elsewhere. Neither waits for the other:
events are posted and collected, and the wish to stop is looked up once a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import ray

from hindcast.report.events import Progress, Reporter
from hindcast.run.interruption import Interruption

_PROGRESS_EVERY_S = 0.5
_LOOK_EVERY_S = 1.0
_MOST_NOTES = 100


@dataclass
class Mail:
    """What was posted since the driver looked last.

    Attributes:
        progress: the latest.
        notes: (resource, message), in order.
        pulses: signs of life between two progress reports.
    """

    progress: Progress | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)
    pulses: int = 0


class _MailboxActor:
    """The actor."""

    def __init__(self) -> None:
        self._mail = Mail()
        self._stop = False

    def post_progress(self, progress: Progress) -> None:
        self._mail.progress = progress

    def post_note(self, resource: str, message: str) -> None:
        self._mail.notes = [*self._mail.notes, (resource, message)][-_MOST_NOTES:]

    def post_pulse(self) -> None:
        self._mail.pulses += 1

    def take(self) -> Mail:
        mail, self._mail = self._mail, Mail()
        return mail

    def request_stop(self) -> None:
        self._stop = True

    def stop_requested(self) -> bool:
        return self._stop

    def answer(self) -> None:
        """Once it is given, all that was posted before is here."""


class Mailbox:
    """A handle of the box, for the driver and (pickled) for every process of the run."""

    def __init__(self, box: Any) -> None:
        self._box = box
        self._taking: Any = None

    @classmethod
    def open(cls, options: dict[str, Any]) -> Mailbox:
        """Start the actor with these options of Ray's; it ends with the driver."""
        return cls(ray.remote(_MailboxActor).options(**options).remote())

    @contextmanager
    def reporter(self) -> Iterator[Reporter]:
        """Posts events; to be used where the work is done. The last ones are there when it ends."""
        poster = _Poster(self._box)
        try:
            yield poster
        finally:
            poster.flush()

    def pulse(self) -> Pulse:
        """Sends signs of life when progress is rare; called where the work is done. Can be pickled."""
        return Pulse(self._box)

    @contextmanager
    def interruption(self) -> Iterator[Interruption]:
        """Sees the driver's wish to stop within about a second; to be made where it is looked at."""
        wish = _StopRequest(self._box)
        try:
            yield wish
        finally:
            wish.end()

    def take(self, timeout: float) -> Mail:
        """What was posted since the last call.

        Raises:
            ray.exceptions.GetTimeoutError: no answer within `timeout` seconds; the next call waits for the same one.
        """
        if self._taking is None:
            self._taking = self._box.take.remote()
        mail: Mail = ray.get(self._taking, timeout=timeout)
        self._taking = None
        return mail

    def request_stop(self) -> None:
        """Ask the run to end at its next safe point."""
        self._box.request_stop.remote()


class _Poster(Reporter):
    """A reporter whose events go to the box; of progress at most two a second, a stage's first one always.

    An outcome is what the work returns: it is not posted.
    """

    def __init__(self, box: Any) -> None:
        self._box = box
        self._stage: tuple[str, str] | None = None
        self._posted = 0.0
        self._held: Progress | None = None

    def progress(self, progress: Progress) -> None:
        stage = (progress.resource, progress.stage)
        now = time.monotonic()
        if stage == self._stage and now - self._posted < _PROGRESS_EVERY_S:
            self._held = progress
            return
        self._stage, self._posted, self._held = stage, now, None
        self._box.post_progress.remote(progress)

    def flush(self) -> None:
        """Post what was held back, and wait until all has come."""
        if self._held is not None:
            self._box.post_progress.remote(self._held)
        with suppress(ray.exceptions.RayError):  # the box went with the head, and this process is about to
            ray.get(self._box.answer.remote())

    def note(self, resource: str, message: str) -> None:
        self._box.post_note.remote(resource, message)


class Pulse:
    """Called for any event, such as an episode; posts at most one sign of life per second."""

    def __init__(self, box: Any) -> None:
        self._box = box
        self._posted = 0.0

    def __call__(self, done: object = None) -> None:  # noqa: ARG002  (that it was done is enough)
        now = time.monotonic()
        if now - self._posted >= _LOOK_EVERY_S:
            self._posted = now
            self._box.post_pulse.remote()


class _StopRequest(Interruption):
    """An interruption that a thread asks the box for, so that `check` never waits."""

    def __init__(self, box: Any) -> None:
        super().__init__()
        self._box = box
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hindcast-stop", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask no more: a call after Ray was shut down would start another one."""
        self._ended.set()
        self._thread.join(timeout=_LOOK_EVERY_S)

    def _watch(self) -> None:
        while not self.is_requested and not self._ended.wait(_LOOK_EVERY_S):
            try:
                self.is_requested = ray.get(self._box.stop_requested.remote())
            except Exception:  # the box went with the head, and this process is about to
                return
