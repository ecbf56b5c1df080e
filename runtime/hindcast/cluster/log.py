"""The driver's log: what it prints goes to the pod's output, and to the run folder, since pods vanish.

Secrets stay out of all that people read: logs, reports, events (`redactor`).
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TextIO

from hindcast.formatting import plural
from hindcast.storage.location import Location

HEAD_BYTES: Final = 256 << 10
"""Kept of the beginning."""
TAIL_BYTES: Final = 2 << 20
"""Kept of the end."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
MASK = "***"

_SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|CONNECTION_STRING|(ACCESS|ACCOUNT|API|STORAGE)_KEY"
)
_FILE_NAME = re.compile(r"_(FILE|PATH|DIR)$")
_SHORTEST = 6
"""Minimum length of a value to hide; shorter ones occur in ordinary words."""

_PATTERNS = (
    (re.compile(r"(?<=://)(?!anonymous@)[^/\s@]+(?=@)"), MASK),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {MASK}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"), MASK),
    (re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), MASK),
    (
        re.compile(
            r"(?i)([?&](sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|token)=)[^&\s]+"
        ),
        rf"\1{MASK}",
    ),
)
"""User information of URIs, authorization headers, JSON web tokens, AWS key ids, signed URLs."""


def make_redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """What hides, in any text, the values of variables whose names speak of credentials, and what looks like one."""
    values = {
        value
        for name, value in environment.items()
        if _SECRET_NAME.search(name.upper())
        and not _FILE_NAME.search(name.upper())
        and len(value) >= _SHORTEST
    }
    known = re.compile(
        "|".join(re.escape(value) for value in sorted(values, key=len, reverse=True)) or "(?!)"
    )

    def redact(text: str) -> str:
        text = known.sub(MASK, text)
        for pattern, hidden in _PATTERNS:
            text = pattern.sub(hidden, text)
        return text

    return redact


class DriverLog:
    """Lines that were printed, the first and the last ones, bounded; object stores cannot append, so all of it is kept.

    Args:
        redact: hides secrets in a line.
    """

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._lock = threading.Lock()
        self._head: list[bytes] = []
        self._head_bytes = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0
        self._rest = ""
        self._version = 0
        self._uploaded = 0

    def write(self, text: str) -> str:
        """Take what was printed; the complete lines of it and of what came before, as they may be shown."""
        with self._lock:
            complete, newline, self._rest = (self._rest + text).rpartition("\n")
            shown = self._redact(_COLOURS.sub("", complete + newline))
            for line in shown.encode(errors="replace").splitlines(keepends=True):
                self._keep(line)
            self._version += bool(shown)
            return shown

    def upload(self, file: Location) -> None:
        """Put the log there, where it has changed since.

        Raises:
            StorageError: it could not be written.
        """
        with self._lock:
            version, content = self._version, self._content()
        if version != self._uploaded:
            file.write_bytes(content)
            self._uploaded = version

    def _keep(self, line: bytes) -> None:
        if not self._tail and self._head_bytes + len(line) <= HEAD_BYTES:
            self._head.append(line)
            self._head_bytes += len(line)
            return
        self._tail.append(line)
        self._tail_bytes += len(line)
        while self._tail_bytes > TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())
            self._dropped += 1

    def _content(self) -> bytes:
        gap = [f"… {plural(self._dropped, 'line')} left out …\n".encode()] if self._dropped else []
        return b"".join([*self._head, *gap, *self._tail, self._redact(self._rest).encode(errors="replace")])


@contextmanager
def capture_output(log: DriverLog) -> Iterator[DriverLog]:
    """The log takes the place of sys.stdout and sys.stderr for as long as the block runs."""
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = _Stream(log, sys.stdout)
    try:
        yield log
    finally:
        sys.stdout, sys.stderr = before


class _Stream:
    """A text stream that writes whole lines to the log, and what the log lets through to another stream."""

    encoding = "utf-8"

    def __init__(self, log: DriverLog, below: TextIO) -> None:
        self._log = log
        self._below = below

    def write(self, text: str) -> int:
        shown = self._log.write(text)
        if shown:
            self._below.write(shown)
            self._below.flush()
        return len(text)

    def flush(self) -> None:
        self._below.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._below.fileno()
