"""Helpers that make small episodes and datasets of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gymnasium import spaces

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.layouts import DEFAULT_LAYOUT
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve


def make_block(lengths: Sequence[int], first: int = 0, seed: int = 0, value: float = 0.0) -> Block:
    """Make episodes e<first>, e<first + 1>, … of these lengths; `value` is added to all rewards."""
    rng, num_episodes, num_steps = np.random.default_rng([seed, first]), len(lengths), sum(lengths)
    return Block(
        columns={
            "obs": rng.standard_normal((num_steps + num_episodes, 4)).astype(np.float32),
            "actions": rng.integers(0, 3, num_steps),
            "rewards": rng.uniform(size=num_steps) + value,
        },
        length=np.array(lengths, dtype=np.int64),
        eps_id=np.array([f"e{first + i}" for i in range(num_episodes)], dtype=object),
        t_started=np.zeros(num_episodes, dtype=np.int64),
        terminated=np.arange(num_episodes) % 2 == 0,
        truncated=np.arange(num_episodes) % 2 == 1,
    )


def make_spec(block: Block) -> DataSpec:
    """Make the spec of a block from `make_block`, with spaces and an environment."""
    return DataSpec.from_block(block, spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(3), "Test-v0")


def write_block(
    folder: Path, block: Block, spec: DataSpec | None = None, layout: str = DEFAULT_LAYOUT
) -> Path:
    """Write a block to one file in a folder, and return the folder."""
    with BlockWriter(resolve(folder), spec or make_spec(block), "000000-a1", layout=layout) as writer:
        writer.write(block)
    return folder


def read_block(dataset: Dataset) -> Block:
    """Read all episodes."""
    return Block.concat([dataset.read(unit) for unit in dataset.units])
