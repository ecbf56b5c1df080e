"""Corrupt files, and check that reading them fails with an error that names the file."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from hindcast.errors import DataError

Content = TypeVar("Content")


def corrupted_copies(content: bytes, num_copies: int, seed: int = 0) -> Iterator[bytes]:
    """Yield copies of the content with 1, 8 or 64 bytes changed at a random position."""
    rng = random.Random(seed)
    for _ in range(num_copies):
        copy = bytearray(content)
        start = rng.randrange(len(content))
        for position in range(start, min(len(content), start + rng.choice([1, 1, 8, 64]))):
            copy[position] = rng.randrange(256)
        yield bytes(copy)


def count_refusals(
    path: Path, read: Callable[[], Content], check: Callable[[Content], None], times: int, seed: int = 0
) -> int:
    """Corrupt a file `times` times, and return how often reading it raises a DataError that names the file.

    If the file can still be read, its content must pass `check`.
    """
    original, num_refused = path.read_bytes(), 0
    for copy in corrupted_copies(original, times, seed):
        path.write_bytes(copy)
        try:
            content = read()
        except DataError as error:
            assert str(path) in str(error)
            assert len(str(error)) < 600
            num_refused += 1
        else:
            check(content)
    path.write_bytes(original)
    return num_refused


def check_truncations(path: Path, read: Callable[[], object], every: int) -> None:
    """Truncate a file to 1, 1 + `every`, … bytes, and check that reading it raises a DataError that names it."""
    original = path.read_bytes()
    for size in range(1, len(original), every):
        path.write_bytes(original[:size])
        with pytest.raises(DataError, match=re.escape(str(path))):
            read()
    path.write_bytes(original)
