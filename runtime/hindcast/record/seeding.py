"""Randomness of recordings: (seed, index) alone determine an episode's start and its policy's noise.

The data therefore do not depend on which runner records an episode, on the number of runners, or on kills. (The last
bits of the policy's outputs also depend on the slot, which `EnvRunner` derives from the index.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hindcast.pipeline.rng import derive_seed

_CHUNK_STEPS = 128  # one draw per slot and chunk in place of one per step

F32 = NDArray[np.float32]
DrawNoise = Callable[[np.random.Generator, int], F32]


def reset_seed(seed: int, *path: int | str) -> int:
    """Return a 31-bit seed for `env.reset(seed=...)`."""
    return derive_seed(seed, "reset", *path)


class EpisodeNoise:
    """One noise stream per slot, restarted whenever the slot starts another episode.

    Args:
        num_slots: B.
        draw: the policy's `draw_noise(generator, count) -> [count, K]`.
    """

    def __init__(self, num_slots: int, draw: DrawNoise) -> None:
        self._draw = draw
        self._generators: list[np.random.Generator | None] = [None] * num_slots
        # Only the shape of this draw matters: `start` overwrites the values before a slot uses them.
        self._chunk: F32 = np.repeat(draw(np.random.default_rng(0), _CHUNK_STEPS)[:, None], num_slots, axis=1)
        self._position = 0

    def start(self, slot: int, generator: np.random.Generator) -> None:
        """Start a new stream in a slot; chunk boundaries do not change its values."""
        self._generators[slot] = generator
        # Earlier rows belong to the slot's previous episode.
        self._chunk[self._position :, slot] = self._draw(generator, _CHUNK_STEPS - self._position)

    def next(self) -> F32:
        """Return the noise of every slot's next step, `[B, K]`."""
        if self._position == _CHUNK_STEPS:
            self._position = 0
            for slot, generator in enumerate(self._generators):
                if generator is not None:
                    self._chunk[:, slot] = self._draw(generator, _CHUNK_STEPS)
        noise = self._chunk[self._position].copy()
        self._position += 1
        return noise
