"""Infos in text: a line must stay a line, and JSON within JSON must be JSON."""

from __future__ import annotations

import orjson

from hindcast.errors import DataError


def info_json(text: str) -> bytes:
    """The info's JSON without line ends.

    Raises:
        DataError: it is no JSON.
    """
    try:
        orjson.loads(text)
    except ValueError as error:
        raise DataError(f"an info is not JSON ({error}): {text[:200]!r}") from error
    return text.encode().replace(b"\n", b" ").replace(b"\r", b" ")
