"""Random generators by name: each is derived from a seed and a path of words and numbers, not from earlier calls."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

GLOBAL_GENERATORS: Final = threading.RLock()
"""Held while a thread draws from the global generators of Python, NumPy or torch (CPU)."""


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """Return a counter-based generator (Philox: Salmon et al., SC 2011) for `path` under `seed`.

    Different paths give unrelated streams; the same path gives the same stream on every machine.
    """
    name = "/".join(map(str, (seed, *path)))
    key = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def derive_seed(seed: int, *path: int | str) -> int:
    """Return a 31-bit seed for `path` under `seed`, for generators of other libraries."""
    return int(generator(seed, *path).integers(2**31))


@contextmanager
def seeded_generators(seed: int, *path: int | str) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch (CPU) for `path` under `seed`; restore them at the end.

    Custom code that draws from them in the block returns the same result whichever process runs it, and does not
    change the draws of the training. Other threads that draw from them must hold `GLOBAL_GENERATORS`.
    """
    with GLOBAL_GENERATORS:
        yield from _swap_generators(derive_seed(seed, "global generators", *path))


def _swap_generators(value: int) -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(value)
    np.random.seed(value)
    # torch.manual_seed would also seed CUDA's generators, which belong to the training.
    torch.default_generator.manual_seed(value)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


class Uniforms:
    """An indexed sequence of uniform numbers in [0, 1): each is derived from `seed`, `path` and its index alone."""

    _CHUNK_SIZE = 1 << 12

    def __init__(self, seed: int, *path: int | str) -> None:
        self._seed = seed
        self._path = path
        self._chunk_index = -1
        self._chunk = np.empty(0)

    def take(self, first: int, count: int) -> NDArray[np.float64]:
        """Return `count` numbers from index `first` on, float64."""
        chunk_indices = range(first // self._CHUNK_SIZE, -(-(first + count) // self._CHUNK_SIZE))
        chunks = [self._draw_chunk(chunk_index) for chunk_index in chunk_indices]
        offset = first - chunk_indices.start * self._CHUNK_SIZE
        return np.concatenate(chunks)[offset : offset + count]

    def _draw_chunk(self, chunk_index: int) -> NDArray[np.float64]:
        if chunk_index != self._chunk_index:
            self._chunk = generator(self._seed, *self._path, chunk_index).random(self._CHUNK_SIZE)
            self._chunk_index = chunk_index
        return self._chunk
