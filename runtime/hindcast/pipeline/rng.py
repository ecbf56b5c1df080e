"""Randomness by name: a generator follows from a seed and a path of words and numbers, not from calls."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """A counter-based generator (Philox: Salmon et al., SC 2011) for `path` under `seed`.

    Different paths give unrelated streams; the same path gives the same stream on every machine.
    """
    name = "/".join(map(str, (seed, *path)))
    key = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def seed_of(seed: int, *path: int | str) -> int:
    """A 31-bit seed for `path` under `seed`, for generators of other libraries. Different paths give unrelated ones."""
    return int(generator(seed, *path).integers(2**31))
