"""Seeds of resets and noise of episodes."""

from __future__ import annotations

import numpy as np

from hindcast.pipeline.rng import generator
from hindcast.record.seeding import EpisodeNoise, reset_seed


def draw_uniform(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.random((count, 2), dtype=np.float32)


def noise_stream(index: int, num_steps: int) -> np.ndarray:
    """Return the noise of an episode in a runner with a single slot."""
    noise = EpisodeNoise(1, draw_uniform)
    noise.start(0, generator(0, "noise", index))
    return np.stack([noise.next()[0].copy() for _ in range(num_steps)])


def test_reset_seeds_differ_and_fit_gymnasium() -> None:
    seeds = [reset_seed(seed, "episode", index) for seed in range(3) for index in range(1000)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert reset_seed(1, "episode", 5) == reset_seed(1, "episode", 5)


def test_noise_of_episode_does_not_depend_on_slot_or_neighbours() -> None:
    lengths = [300, 7, 150, 400, 128, 129, 1]  # above, at and below the size of a chunk
    noise = EpisodeNoise(3, draw_uniform)
    episode_by_slot: dict[int, int] = {}
    waiting_episodes = list(range(len(lengths)))
    rows_by_index: dict[int, list[np.ndarray]] = {index: [] for index in waiting_episodes}
    while waiting_episodes or episode_by_slot:
        for slot in range(3):
            if slot not in episode_by_slot and waiting_episodes:
                episode_by_slot[slot] = waiting_episodes.pop(0)
                noise.start(slot, generator(0, "noise", episode_by_slot[slot]))
        rows = noise.next()
        for slot, index in list(episode_by_slot.items()):
            rows_by_index[index].append(rows[slot].copy())
            if len(rows_by_index[index]) == lengths[index]:
                del episode_by_slot[slot]

    for index, noise_rows in rows_by_index.items():
        expected_noise = draw_uniform(generator(0, "noise", index), lengths[index])
        np.testing.assert_array_equal(np.stack(noise_rows), expected_noise)


def test_noise_does_not_repeat() -> None:
    values = np.concatenate([noise_stream(0, 500), noise_stream(1, 500)])
    assert len(np.unique(values[:, 0])) > 990
