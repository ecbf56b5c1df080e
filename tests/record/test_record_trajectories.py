"""The buffer of the running episodes of all slots."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hindcast.record.slots import Trajectories


def play_slots(lengths: list[list[int]], num_steps: int) -> dict[tuple[int, int], np.ndarray]:
    """Play episodes of these lengths, one after the other in each slot.

    Returns:
        (slot, index of the episode in the slot) -> extracted column, in which a step is `slot * 10^6 + step`.
    """
    width = len(lengths)
    history, episodes = Trajectories(width), {}
    episode_counts = [0] * width
    for slot in range(width):
        history.begin(slot)
    for step in range(num_steps):
        history.append({"x": np.arange(width) * 1_000_000 + step, "last": np.zeros((width, 2))})
        history.set_last("last", np.full((width, 2), step, dtype=np.float64))
        for slot, slot_lengths in enumerate(lengths):
            episode = episode_counts[slot]
            if episode == len(slot_lengths) or history.length(slot) < slot_lengths[episode]:
                continue
            columns = history.extract(slot)
            np.testing.assert_array_equal(columns["last"][:, 1], columns["x"] - slot * 1_000_000)
            episodes[slot, episode] = columns["x"]
            episode_counts[slot] += 1
            if episode + 1 < len(slot_lengths):
                history.begin(slot)
    return episodes


@pytest.mark.parametrize(
    "lengths",
    [
        [[1, 1, 1], [3]],
        [[511, 512, 513], [100] * 15],
        [[2000], [7] * 285],  # the buffer grows for one slot, while others start new episodes
        [[1], [1], [1500]],  # idle slots keep the buffer neither from growing nor from moving
    ],
    ids=str,
)
def test_extract_returns_whole_episodes(lengths: list[list[int]]) -> None:
    episodes = play_slots(lengths, num_steps=2001)
    assert len(episodes) == sum(map(len, lengths))
    for (slot, episode_index), values in episodes.items():
        first_step = sum(lengths[slot][:episode_index])
        expected = slot * 1_000_000 + np.arange(first_step, first_step + lengths[slot][episode_index])
        np.testing.assert_array_equal(values, expected)


def test_extracted_episode_does_not_change_with_later_steps() -> None:
    history = Trajectories(1)
    history.begin(0)
    history.append({"x": np.array([1.0])})
    columns = history.extract(0)
    history.begin(0)
    history.append({"x": np.array([2.0])})
    history.set_last("x", np.array([9.0]))
    assert columns["x"].tolist() == [1.0]


def test_memory_is_bounded_by_longest_running_episode() -> None:
    tracemalloc.start()
    history = Trajectories(2)
    history.begin(0)
    history.begin(1)
    for step in range(20_000):
        history.append({"x": np.zeros(2)})
        if step % 50 == 49:
            assert len(history.extract(0)["x"]) == 50
            history.begin(0)
        if step % 300 == 299:
            assert len(history.extract(1)["x"]) == 300
            history.begin(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 1024 * 2 * 8 * 2  # of 20,000 x 2 x 8 bytes
