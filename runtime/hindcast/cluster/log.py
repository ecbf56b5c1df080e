"""The driver's log, written to the pod's output and to the run folder, which outlives the pod.

Secrets are hidden in everything that people read: logs, reports, events (`make_redactor`).
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
"""Maximum number of bytes that are kept from the start of a log."""
TAIL_BYTES: Final = 2 << 20
"""Maximum number of bytes that are kept from the end of a log."""

_COLOUR_CODE: Final = re.compile(r"\x1b\[[0-9;]*m")
MASK = "***"
"""Text in place of a secret."""

_SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|CONNECTION_STRING|(ACCESS|ACCOUNT|API|STORAGE)_KEY"
)
"""Part of the names of environment variables with secret values."""
_FILE_NAME = re.compile(r"_(FILE|PATH|DIR)$")
"""End of the names of environment variables with a path, which is no secret."""
_MIN_SECRET_LENGTH = 6
"""Minimum length of a value to hide; shorter values occur in ordinary words."""

_SECRET_PATTERNS = (
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
"""(pattern, replacement): user names in URIs, authorization headers, JSON web tokens, AWS key ids, signed URLs."""


def make_redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """Return a function that hides credentials in texts.

    It hides the values of environment variables with names such as TOKEN or PASSWORD, and text that looks like a
    credential.
    """
    values = {
        value
        for name, value in environment.items()
        if _SECRET_NAME.search(name.upper())
        and not _FILE_NAME.search(name.upper())
        and len(value) >= _MIN_SECRET_LENGTH
    }
    secret_values = re.compile(
        "|".join(re.escape(value) for value in sorted(values, key=len, reverse=True))
        or "(?!)"  # matches nothing
    )

    def redact(text: str) -> str:
        text = secret_values.sub(MASK, text)
        for pattern, replacement in _SECRET_PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    return redact


class DriverLog:
    """A log of the first and last printed lines, within size limits.

    The lines stay in memory, because object stores cannot append to a file.

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
        self._num_dropped = 0
        self._partial_line = ""
        self._version = 0  # increases with each change of the content
        self._uploaded_version = 0

    def write(self, text: str) -> str:
        """Add printed text; return the lines that it completes, redacted."""
        with self._lock:
            complete_lines, newline, self._partial_line = (self._partial_line + text).rpartition("\n")
            visible = self._redact(_COLOUR_CODE.sub("", complete_lines + newline))
            for line in visible.encode(errors="replace").splitlines(keepends=True):
                self._append_line(line)
            self._version += bool(visible)
            return visible

    def upload(self, file: Location) -> None:
        """Write the log to a file if it has changed since the last upload.

        Raises:
            StorageError: the file could not be written.
        """
        with self._lock:
            version, content = self._version, self._build_content()
        if version != self._uploaded_version:
            file.write_bytes(content)
            self._uploaded_version = version

    def _append_line(self, line: bytes) -> None:
        if not self._tail and self._head_bytes + len(line) <= HEAD_BYTES:
            self._head.append(line)
            self._head_bytes += len(line)
            return
        self._tail.append(line)
        self._tail_bytes += len(line)
        while self._tail_bytes > TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())
            self._num_dropped += 1

    def _build_content(self) -> bytes:
        gap = [f"… {plural(self._num_dropped, 'line')} left out …\n".encode()] if self._num_dropped else []
        return b"".join(
            [*self._head, *gap, *self._tail, self._redact(self._partial_line).encode(errors="replace")]
        )


@contextmanager
def capture_output(log: DriverLog) -> Iterator[DriverLog]:
    """Redirect sys.stdout and sys.stderr to the log for the duration of the block."""
    original_streams = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = _Stream(log, sys.stdout)
    try:
        yield log
    finally:
        sys.stdout, sys.stderr = original_streams


class _Stream:
    """A text stream that writes to the log and passes the redacted lines on to another stream."""

    encoding = "utf-8"

    def __init__(self, log: DriverLog, target: TextIO) -> None:
        self._log = log
        self._target = target

    def write(self, text: str) -> int:
        visible = self._log.write(text)
        if visible:
            self._target.write(visible)
            self._target.flush()
        return len(text)

    def flush(self) -> None:
        self._target.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._target.fileno()
