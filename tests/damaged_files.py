"""Files with some of their bytes changed, and what reading them must do."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from hindcast.errors import DataError

Content = TypeVar("Content")


def corrupted_copies(whole: bytes, times: int, seed: int = 0) -> Iterator[bytes]:
    """The content with 1, 8 or 64 bytes changed, anywhere."""
    rng = random.Random(seed)
    for _ in range(times):
        changed = bytearray(whole)
        start = rng.randrange(len(whole))
        for position in range(start, min(len(whole), start + rng.choice([1, 1, 8, 64]))):
            changed[position] = rng.randrange(256)
        yield bytes(changed)


def count_refusals(
    path: Path, read: Callable[[], Content], check: Callable[[Content], None], times: int, seed: int = 0
) -> int:
    """Damage a file anywhere, so many times: how often reading it is refused, in a sentence that names the file.

    What is read all the same must pass `check`.
    """
    whole, refused = path.read_bytes(), 0
    for changed in corrupted_copies(whole, times, seed):
        path.write_bytes(changed)
        try:
            content = read()
        except DataError as error:
            assert str(path) in str(error)
            assert len(str(error)) < 600
            refused += 1
        else:
            check(content)
    path.write_bytes(whole)
    return refused


def check_truncations(path: Path, read: Callable[[], object], every: int) -> None:
    """Make sure that a file which is cut off, at every so many bytes, is refused by its name."""
    whole = path.read_bytes()
    for size in range(1, len(whole), every):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=re.escape(str(path))):
            read()
    path.write_bytes(whole)
