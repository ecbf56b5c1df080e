"""Training and acting preprocess observations in the same way."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from pipeline_fakes import FakeDataset, both_feeds

from hindcast.models.preprocessing import Preprocessing
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.window import Recipe

UNITS = [[5, 1, 7], [4, 4], [9]]
STEPS = 30


def observe_episodes(preprocessing, dataset):
    """Return the observations that the module gets when it acts: step -> observation, step -> next observation."""
    observations, next_observations = {}, {}
    for block in dataset.blocks:
        for episode in range(block.num_episodes):
            rows = block.columns["obs"][block.rows_of("obs", episode)]
            steps = block.columns["rewards"][block.rows_of("rewards", episode)]
            is_first = np.zeros(len(rows), dtype=bool)
            is_first[0] = True
            processed = [
                preprocessing.observe(row[None], first[None])["obs"][0]
                for row, first in zip(rows, is_first, strict=True)
            ]
            observations |= dict(zip(steps.astype(int), processed, strict=False))
            next_observations |= dict(zip(steps.astype(int), processed[1:], strict=True))
    return observations, next_observations


@both_feeds
@pytest.mark.parametrize("shape", [(3,), (4, 4, 2)])
@pytest.mark.parametrize("frame_stack", [1, 2, 4])
@pytest.mark.parametrize("observation_filter", ["none", "meanStd"])
def test_training_and_acting_get_the_same_observations(
    feed_kind, shape, frame_stack, observation_filter, make_feed
):
    space = gym.spaces.Box(-np.inf, np.inf, shape, np.float64)
    preprocessing = Preprocessing(
        space, gym.spaces.Discrete(2), observation_filter=observation_filter, frame_stack=frame_stack
    )
    preprocessing.update({"obs": np.random.default_rng(0).normal(10, 5, (100, *shape))})
    dataset = FakeDataset(UNITS, obs_shape=shape)
    recipe = Recipe(Needs(frozenset({"obs", "new_obs", "rewards"})), preprocessing)
    batch = make_feed(feed_kind, dataset, recipe=recipe, batch_size=STEPS, window_steps=12).next()
    observations, next_observations = observe_episodes(preprocessing, dataset)
    for row, step in enumerate(batch["rewards"].int().tolist()):
        assert np.array_equal(batch["obs"][row].numpy(), observations[step].astype(np.float32))
        assert np.array_equal(batch["new_obs"][row].numpy(), next_observations[step].astype(np.float32))


@both_feeds
def test_images_keep_dtype_and_are_stored_once(feed_kind, make_feed):
    dataset = FakeDataset(UNITS, obs_shape=(8, 8, 1))
    for block in dataset.blocks:
        block.columns["obs"] = block.columns["obs"].astype(np.uint8)
    space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
    preprocessing = Preprocessing(space, gym.spaces.Discrete(2), frame_stack=4)
    feed = make_feed(feed_kind, dataset, recipe=Recipe(Needs(frozenset({"obs", "new_obs"})), preprocessing))
    batch = feed.next()
    assert batch["obs"].shape == (10, 8, 8, 4)
    assert batch["obs"].dtype == torch.uint8
    assert torch.equal(batch["obs"][..., 1:], batch["new_obs"][..., :-1])
    windows = [lane._current for lane in feed._lanes if lane._current is not None]
    assert windows
    for data in (window.data for window in windows):
        assert data.columns["obs"].nbytes == 64 * (data.num_steps + len(data.length))
