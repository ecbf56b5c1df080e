"""Files with some of their bytes changed."""

from __future__ import annotations

import random
from collections.abc import Iterator


def damaged(whole: bytes, times: int, seed: int = 0) -> Iterator[bytes]:
    """The content with 1, 8 or 64 bytes changed, anywhere."""
    rng = random.Random(seed)
    for _ in range(times):
        changed = bytearray(whole)
        start = rng.randrange(len(whole))
        for position in range(start, min(len(whole), start + rng.choice([1, 1, 8, 64]))):
            changed[position] = rng.randrange(256)
        yield bytes(changed)
