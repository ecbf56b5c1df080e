from __future__ import annotations

import numpy as np

from hindcast.pipeline.rng import generator
from hindcast.record.seeding import EpisodeNoise, reset_seed


def draw(source: np.random.Generator, count: int) -> np.ndarray:
    return source.random((count, 2), dtype=np.float32)


def stream(index: int, steps: int) -> np.ndarray:
    """The noise of an episode that has a runner for itself."""
    noise = EpisodeNoise(1, draw)
    noise.start(0, generator(0, "noise", index))
    return np.stack([noise.next()[0].copy() for _ in range(steps)])


def test_reset_seeds_differ_by_seed_and_index_and_fit_gymnasium() -> None:
    seeds = [reset_seed(seed, "episode", index) for seed in range(3) for index in range(1000)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert reset_seed(1, "episode", 5) == reset_seed(1, "episode", 5)


def test_noise_of_an_episode_does_not_depend_on_slot_or_neighbours() -> None:
    lengths = [300, 7, 150, 400, 128, 129, 1]  # beyond, at and below the chunk that noise is drawn in
    alone = {index: draw(generator(0, "noise", index), length) for index, length in enumerate(lengths)}

    noise = EpisodeNoise(3, draw)
    playing: dict[int, int] = {}
    waiting = list(range(len(lengths)))
    seen: dict[int, list[np.ndarray]] = {index: [] for index in waiting}
    while waiting or playing:
        for slot in range(3):
            if slot not in playing and waiting:
                playing[slot] = waiting.pop(0)
                noise.start(slot, generator(0, "noise", playing[slot]))
        rows = noise.next()
        for slot, index in list(playing.items()):
            seen[index].append(rows[slot].copy())
            if len(seen[index]) == lengths[index]:
                del playing[slot]

    for index, rows_seen in seen.items():
        np.testing.assert_array_equal(np.stack(rows_seen), alone[index])


def test_noise_does_not_repeat() -> None:
    values = np.concatenate([stream(0, 500), stream(1, 500)])
    assert len(np.unique(values[:, 0])) > 990
