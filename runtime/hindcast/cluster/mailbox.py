"""Messages between the pools and the driver, through a small actor on the head.

The driver runs on the head and only supervises; runners and learners work in other pods. The driver and these
processes never wait for each other: events are posted and collected, and a stop request is polled once a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import ray

from hindcast.ray_session import companion_options
from hindcast.report.events import Progress, Reporter
from hindcast.run.interruption import Interruption

_PROGRESS_INTERVAL_SECONDS = 0.5
_POLL_INTERVAL_SECONDS = 1.0
_MAX_NOTES = 100
"""Maximum number of notes between two polls of the driver; earlier notes are dropped."""


@dataclass
class Mail:
    """Messages since the driver's last poll.

    Attributes:
        progress: latest progress report.
        notes: (resource, message) pairs, in order.
        num_pulses: number of signs of life, see `Pulse`.
    """

    progress: Progress | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)
    num_pulses: int = 0


class _MailboxActor:
    """The actor behind a `Mailbox`."""

    def __init__(self) -> None:
        self._mail = Mail()
        self._is_stop_requested = False

    def post_progress(self, progress: Progress) -> None:
        self._mail.progress = progress

    def post_note(self, resource: str, message: str) -> None:
        self._mail.notes = [*self._mail.notes, (resource, message)][-_MAX_NOTES:]

    def post_pulse(self) -> None:
        self._mail.num_pulses += 1

    def take(self) -> Mail:
        mail, self._mail = self._mail, Mail()
        return mail

    def set_stop_requested(self, is_requested: bool) -> None:
        self._is_stop_requested = is_requested

    def is_stop_requested(self) -> bool:
        return self._is_stop_requested

    def flush(self) -> None:
        """Do nothing. Ray runs a caller's calls in order, so when this one returns, its earlier posts have arrived."""


class Mailbox:
    """A handle of the mailbox's actor. It can be pickled, for the other processes of the run."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._pending_mail_ref: Any = None

    @classmethod
    def open(cls) -> Mailbox:
        """Start the actor on this node; it ends with the driver."""
        return cls(ray.remote(_MailboxActor).options(**companion_options()).remote())

    @contextmanager
    def reporter(self) -> Iterator[Reporter]:
        """Yield a reporter that posts events to the mailbox; the end of the block waits until all have arrived."""
        poster = _Poster(self._actor)
        try:
            yield poster
        finally:
            poster.flush()

    def make_pulse(self) -> Pulse:
        """Return a callable that posts signs of life, for work that rarely reports progress. It can be pickled."""
        return Pulse(self._actor)

    @contextmanager
    def interruption(self) -> Iterator[Interruption]:
        """Yield an interruption that sees the driver's stop request within about a second.

        It must be created in the process that checks it.
        """
        stop_request = _StopRequest(self._actor)
        try:
            yield stop_request
        finally:
            stop_request.end()

    def take(self, timeout_seconds: float) -> Mail:
        """Collect the messages since the last call.

        Raises:
            ray.exceptions.GetTimeoutError: no answer within `timeout_seconds`; the next call waits for the same answer.
        """
        if self._pending_mail_ref is None:
            self._pending_mail_ref = self._actor.take.remote()
        mail: Mail = ray.get(self._pending_mail_ref, timeout=timeout_seconds)
        self._pending_mail_ref = None
        return mail

    def request_stop(self) -> None:
        """Request that the run ends at its next safe point."""
        self._actor.set_stop_requested.remote(True)

    def withdraw_stop_request(self) -> None:
        """Let a task that starts later run: it does not see the earlier request."""
        self._actor.set_stop_requested.remote(False)


class _Poster(Reporter):
    """A reporter that posts events: progress at most twice a second, but always the first of a stage.

    It does not post outcomes (`finished`), because the Ray task that uses the reporter returns them.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._stage: tuple[str, str] | None = None
        self._last_post_time = 0.0
        self._unposted: Progress | None = None

    def progress(self, progress: Progress) -> None:
        stage = (progress.resource, progress.stage)
        now = time.monotonic()
        if stage == self._stage and now - self._last_post_time < _PROGRESS_INTERVAL_SECONDS:
            self._unposted = progress
            return
        self._stage, self._last_post_time, self._unposted = stage, now, None
        self._actor.post_progress.remote(progress)

    def flush(self) -> None:
        """Post the withheld progress, and wait until everything has arrived."""
        if self._unposted is not None:
            self._actor.post_progress.remote(self._unposted)
        with suppress(ray.exceptions.RayError):  # the head died, and this process will end with it
            ray.get(self._actor.flush.remote())

    def note(self, resource: str, message: str) -> None:
        self._actor.post_note.remote(resource, message)


class Pulse:
    """A callable for any event, such as an episode, that posts at most one sign of life per second."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._last_post_time = 0.0

    def __call__(self, event: object = None) -> None:  # noqa: ARG002  (the event itself does not matter)
        now = time.monotonic()
        if now - self._last_post_time >= _POLL_INTERVAL_SECONDS:
            self._last_post_time = now
            self._actor.post_pulse.remote()


class _StopRequest(Interruption):
    """An interruption that a thread updates from the actor, so that `check` never waits."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self._actor = actor
        self._end_event = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="hindcast-stop", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop polling: a remote call after Ray's shutdown would start another Ray."""
        self._end_event.set()
        self._thread.join(timeout=_POLL_INTERVAL_SECONDS)

    def _poll(self) -> None:
        while not self.is_requested and not self._end_event.wait(_POLL_INTERVAL_SECONDS):
            try:
                self.is_requested = ray.get(self._actor.is_stop_requested.remote())
            except Exception:  # the head died, and this process will end with it
                return
