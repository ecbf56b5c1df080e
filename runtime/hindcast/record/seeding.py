"""Randomness of recording: an episode's start and its policy's noise follow from (seed, index) alone.

So the data do not depend on which runner makes an episode, on how many there are, or on what was killed. (The last bits
of what the policy computes depend on the slot too, which `EnvRunner` fixes by the index.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hindcast.pipeline.rng import derive_seed

_CHUNK = 128

F32 = NDArray[np.float32]
DrawNoise = Callable[[np.random.Generator, int], F32]


def reset_seed(seed: int, *path: int | str) -> int:
    """A 31-bit seed for `env.reset(seed=...)`."""
    return derive_seed(seed, "reset", *path)


class EpisodeNoise:
    """One noise stream per slot, each renewed when the slot starts another episode.

    Args:
        slots: B.
        draw: the policy's `draw_noise(generator, count) -> [count, K]`.
    """

    def __init__(self, slots: int, draw: DrawNoise) -> None:
        self._draw = draw
        self._sources: list[np.random.Generator | None] = [None] * slots
        self._chunk: F32 = np.repeat(draw(np.random.default_rng(0), _CHUNK)[:, None], slots, axis=1)
        self._now = 0

    def start(self, slot: int, source: np.random.Generator) -> None:
        """Begin a new stream in a slot, which is the same wherever the chunk cuts it."""
        self._sources[slot] = source
        self._chunk[self._now :, slot] = self._draw(source, _CHUNK - self._now)

    def next(self) -> F32:
        """`[B, K]` the next noise of every slot."""
        if self._now == _CHUNK:
            self._now = 0
            for slot, source in enumerate(self._sources):
                if source is not None:
                    self._chunk[:, slot] = self._draw(source, _CHUNK)
        noise = self._chunk[self._now].copy()
        self._now += 1
        return noise
