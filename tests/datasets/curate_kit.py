"""Helpers that make small episodes and datasets of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gymnasium import spaces

from episode_kit import build_block
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import Interrupted
from hindcast.formats.layouts import DEFAULT_LAYOUT
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve


def make_block(lengths: Sequence[int], first: int = 0, seed: int = 0) -> Block:
    """Make episodes e<first>, e<first + 1>, … of these lengths."""
    rng, num_episodes, num_steps = np.random.default_rng([seed, first]), len(lengths), sum(lengths)
    columns = {
        "obs": rng.standard_normal((num_steps + num_episodes, 4)).astype(np.float32),
        "actions": rng.integers(0, 3, num_steps),
        "rewards": rng.uniform(size=num_steps),
    }
    return build_block(columns, lengths, first)


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


def make_interrupting_hooks(num_checks: int) -> Hooks:
    """Make hooks that interrupt the work after a number of calls of `check`."""
    remaining_checks = iter(range(num_checks))

    def check() -> None:
        if next(remaining_checks, None) is None:
            raise Interrupted("interrupted by the test")

    return Hooks(check=check)
