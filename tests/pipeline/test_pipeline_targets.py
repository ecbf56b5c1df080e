"""Targets are computed when a window is entered and when they are due; a checkpoint within a window keeps them."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from pipeline_fakes import ALL_COLUMNS, FEED_CLASSES, STEPS, UNITS, FakeDataset, both_feeds, make_loader

from hindcast.models.preprocessing import Preprocessing
from hindcast.pipeline.mixed_feed import MixedFeed
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.window import Recipe

RECIPE = Recipe(Needs(ALL_COLUMNS, targets=True))


class Training:
    """A feed and a count of updates; the target `made_at` is the count when it was computed."""

    def __init__(self, feed_kind, every=None):
        self.updates = 0
        targets = Targets(self._compute, lambda: self.updates, every)
        self.feed = FEED_CLASSES[feed_kind](
            make_loader(FakeDataset(UNITS), RECIPE, window_steps=25), 20, targets
        )

    def _compute(self, window):
        assert "made_at" not in window.columns
        return {"made_at": torch.full((window.num_steps,), float(self.updates))}

    def entered_at(self):
        """Return the update that entered the window of each item of the next batch."""
        order = self.feed._order
        lane_of_place = {order.place(lane): lane for lane in range(order.num_lanes)}
        cursors = range(self.feed.cursor, self.feed.cursor + 20)
        lanes = [lane_of_place[cursor % STEPS % order.num_lanes] for cursor in cursors]
        windows = [order.locate(lane, cursor)[0] for lane, cursor in zip(lanes, cursors, strict=True)]
        return [window.first_cursor // 20 for window in windows]

    def update(self):
        batch = self.feed.next()
        self.updates += 1
        return batch


@pytest.fixture
def start_training():
    """`start_training(feed_kind, every)` returns a `Training`, whose feed is closed after the test."""
    trainings = []

    def start(*args):
        trainings.append(Training(*args))
        return trainings[-1]

    yield start
    for training in trainings:
        training.feed.close()


@both_feeds
def test_targets_are_kept_until_the_window_ends(feed_kind, start_training):
    training = start_training(feed_kind)
    for _ in range(40):
        entered_at = training.entered_at()
        assert training.update()["made_at"].tolist() == entered_at


@both_feeds
@pytest.mark.parametrize("every", [1, 3])
def test_targets_are_recomputed_when_due(feed_kind, every, start_training):
    """Each lane delivers an item in each update, so targets are recomputed every `every` updates in a window."""
    training = start_training(feed_kind, every)
    for update in range(40):
        assert training.feed.metrics().get("targets_age", 0) <= every
        expected = [entered + (update - entered) // every * every for entered in training.entered_at()]
        assert training.update()["made_at"].tolist() == expected


@both_feeds
@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("num_updates", [0, 1, 5, 6, 7, 8, 25])
def test_resume_keeps_current_targets(feed_kind, every, num_updates, start_training):
    original = start_training(feed_kind, every)
    for _ in range(num_updates):
        original.update()
    state, tensors = json.loads(json.dumps(original.feed.state())), original.feed.tensors()
    for other_feed_kind in FEED_CLASSES:
        resumed = start_training(other_feed_kind, every)
        resumed.updates = num_updates
        resumed.feed.seek(state, tensors)
        assert resumed.feed.state() == state, "a checkpoint right after the resume contains the targets too"
        assert resumed.feed.tensors().keys() == tensors.keys()
    expected = [original.update() for _ in range(12)]
    assert all(torch.equal(batch["made_at"], resumed.update()["made_at"]) for batch in expected)


@both_feeds
def test_closed_feed_keeps_current_targets(feed_kind, start_training):
    training, reopened = start_training(feed_kind), start_training(feed_kind)
    for _ in range(9):
        training.update()
        reopened.update()
    training.feed.close()
    for _ in range(9):
        assert torch.equal(training.update()["made_at"], reopened.update()["made_at"])


def test_tensors_contain_only_current_targets(start_training):
    training = start_training("streaming")
    while training.feed.cursor < training.feed.epoch_size:
        training.update()
        order, cursor = training.feed._order, training.feed.cursor
        windows = [order.locate(lane, cursor) for lane in range(order.num_lanes)]
        num_steps = sum(training.feed._num_steps(window) for window, index in windows if index)
        assert [len(column) for column in training.feed.tensors().values()] == (
            [num_steps] if num_steps else []
        )


def test_mixed_sources_have_their_own_targets(start_training):
    def make_mixed_feed():
        trainings = [start_training("streaming"), start_training("resident")]
        return trainings, MixedFeed([(training.feed, 1.0) for training in trainings], 0, 20)

    (trainings, original), (resumed_trainings, resumed) = make_mixed_feed(), make_mixed_feed()
    for update in range(9):
        for training in trainings:
            training.updates = update
        original.next()
    resumed.seek(original.state(), original.tensors())
    assert set(original.tensors()) == {"0/made_at", "1/made_at"}
    for update in range(9, 20):
        for training in (*trainings, *resumed_trainings):
            training.updates = update
        assert torch.equal(original.next()["made_at"], resumed.next()["made_at"])
    assert original.metrics()["targets_age"] == max(
        training.feed.metrics()["targets_age"] for training in trainings
    )


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_map_observations_equals_batches(frame_stack):
    dataset = FakeDataset(UNITS, obs_shape=(2, 2))
    space = gym.spaces.Box(-1, 1, (2, 2), np.float32)
    preprocessing = Preprocessing(space, space, frame_stack=frame_stack)
    window = make_loader(dataset, Recipe(Needs(frozenset({"obs", "new_obs"})), preprocessing)).load_all(0)
    observations = window.map_observations(lambda batch: batch["obs"], chunk_rows=7)
    batch = window.gather(torch.arange(window.num_steps))
    assert torch.equal(observations[window.obs_row], batch["obs"])
    assert torch.equal(observations[window.obs_row + 1], batch["new_obs"])
