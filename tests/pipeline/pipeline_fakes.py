"""An in-memory dataset with the interface of `Dataset`, and loaders over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from episode_kit import build_block
from hindcast.datasets.units import EpisodeLocation, Unit
from hindcast.episodes.block import Block
from hindcast.episodes.columns import root
from hindcast.formats.spec import DataSpec
from hindcast.pipeline.executors import Local
from hindcast.pipeline.lane_feed import LaneFeed
from hindcast.pipeline.loader import Loader
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.order import Order
from hindcast.pipeline.window import Batch, Recipe

OBSERVATION_SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTION_SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
FEED_CLASSES = {
    "resident": partial(LaneFeed, is_resident=True),
    "streaming": LaneFeed,
}
UNITS = [[5, 1, 7], [20], [3, 3, 3, 3], [11, 9], [2], [30, 1]]
"""Lengths of the episodes of each unit."""
STEPS = sum(map(sum, UNITS))
both_feeds = pytest.mark.parametrize("feed_kind", list(FEED_CLASSES))


def make_block(lengths: Sequence[int], first: int = 0, obs_shape: tuple[int, ...] = (3,)) -> Block:
    """Make episodes whose values identify their steps: `rewards` is the index of the step, counted from `first`.

    All elements of the observation before step s are s + 0.25; those of a final observation are the last step + 0.75.
    Episodes are terminated and truncated in turn.
    """
    length = np.asarray(lengths, dtype=np.int64)
    steps = first + np.arange(length.sum())
    ends = first + np.cumsum(length)
    observations = [
        np.append(np.arange(e - n, e) + 0.25, e - 0.25) for e, n in zip(ends, length, strict=True)
    ]
    obs = np.concatenate(observations).reshape(-1, *[1] * len(obs_shape))
    columns = {
        "obs": np.broadcast_to(obs, (len(obs), *obs_shape)).astype(np.float64),
        "actions": np.stack([steps, -steps], 1).astype(np.float32),
        "rewards": steps.astype(np.float64),
    }
    ids = [f"episode-{end}-{n}" for end, n in zip(ends, length, strict=True)]
    return build_block(columns, length, eps_id=np.array(ids, dtype=object))


class FakeDataset:
    """A dataset in memory. `units` has the lengths of each unit's episodes; `reads` records the ids of the units read.

    Its steps are numbered across all units, see `make_block`.
    """

    def __init__(self, units: Sequence[Sequence[int]], obs_shape: tuple[int, ...] = (3,)) -> None:
        first_steps = np.cumsum([0, *map(sum, units)])
        self.blocks = [
            make_block(unit, int(first), obs_shape) for unit, first in zip(units, first_steps, strict=False)
        ]
        self.units = [
            Unit(id=i, parts=(), lengths=block.length, nbytes=block.nbytes)
            for i, block in enumerate(self.blocks)
        ]
        self.spec = DataSpec.from_block(self.blocks[0])
        self.digest = repr(units)
        self.num_episodes = sum(map(len, units))
        self.num_steps = int(first_steps[-1])
        self.nbytes = sum(block.nbytes for block in self.blocks)
        self.reads: list[int] = []

    def read(self, unit: Unit, columns: Any = None) -> Block:
        self.reads.append(unit.id)
        block = self.blocks[unit.id]
        columns_read = {
            leaf: column for leaf, column in block.columns.items() if columns is None or root(leaf) in columns
        }
        return block.with_columns(columns_read)

    def locate(self, unit: Unit, episode: int) -> EpisodeLocation:
        return EpisodeLocation(f"file-{unit.id}.parquet", episode)


def random_dataset(seed: int) -> FakeDataset:
    """Make a dataset of episodes that terminate, are truncated or do not end, with random rewards; some are fragments.

    `actions[:, 0]` is the index of the step, `obs` is as in `make_block`.
    """
    rng = np.random.default_rng(seed)
    units = [rng.integers(1, 14, rng.integers(1, 5)).tolist() for _ in range(rng.integers(1, 6))]
    dataset = FakeDataset(units)
    for index, block in enumerate(dataset.blocks):
        end_kinds = rng.integers(0, 3, block.num_episodes)
        dataset.blocks[index] = replace(
            block,
            columns=block.columns | {"rewards": rng.normal(size=block.num_steps)},
            t_started=np.where(rng.random(block.num_episodes) < 0.3, 7, 0),
            terminated=end_kinds == 1,
            truncated=end_kinds == 2,
        )
    return dataset


def are_equal_batches(left_batch: Batch, right_batch: Batch) -> bool:
    return left_batch.keys() == right_batch.keys() and all(
        torch.equal(left_batch[leaf], right_batch[leaf]) for leaf in left_batch
    )


def make_order(
    dataset: FakeDataset, seed: int = 0, window_steps: int = 64, window_bytes: int = 1 << 30, **options: Any
) -> Order:
    steps = np.array([unit.lengths.sum() for unit in dataset.units])
    nbytes = np.array([unit.nbytes for unit in dataset.units])
    return Order(steps, nbytes, seed=seed, window_steps=window_steps, window_bytes=window_bytes, **options)


ALL_COLUMNS = frozenset({"obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"})


def make_loader(
    dataset: FakeDataset, recipe: Recipe | None = None, prelearn: Any = None, **order_options: Any
) -> Loader:
    read = prelearn or (lambda unit, epoch: dataset.read(unit))
    return Loader(
        dataset,
        make_order(dataset, **order_options),
        Local(),
        read,
        recipe or Recipe(Needs(ALL_COLUMNS)),
        "data",
    )
