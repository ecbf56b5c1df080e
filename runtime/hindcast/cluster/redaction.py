"""Keeps secrets out of what people read: reports, logs, events."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|CONNECTION_STRING|(ACCESS|ACCOUNT|API|STORAGE)_KEY"
)
_FILE_NAME = re.compile(r"_(FILE|PATH|DIR)$")
_SHORTEST = 6
"""Minimum length of a value to hide; shorter ones occur in ordinary words."""

_PATTERNS = (
    (re.compile(r"(?<=://)(?!anonymous@)[^/\s@]+(?=@)"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"), HIDDEN),
    (re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), HIDDEN),
    (
        re.compile(
            r"(?i)([?&](sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|token)=)[^&\s]+"
        ),
        rf"\1{HIDDEN}",
    ),
)
"""User information of URIs, authorization headers, JSON web tokens, AWS key ids, signed URLs."""


def redactor(environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
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
        text = known.sub(HIDDEN, text)
        for pattern, hidden in _PATTERNS:
            text = pattern.sub(hidden, text)
        return text

    return redact
