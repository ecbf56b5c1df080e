"""Make episodes and recordings without a runner; fixtures for them and for folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.dataset_folder.commits import Commit, make_file_stem, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.entries import FileEntry
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location, resolve

OBS_SPACE = gym.spaces.Box(-10, 10, (4,), np.float32)
ACTION_SPACE = gym.spaces.Discrete(3)


def build_block(
    columns: dict[str, Any], lengths: Sequence[int] | NDArray[np.int64], first: int = 0, **fields: Any
) -> Block:
    """Build a block of episodes with these columns and lengths.

    By default they are e<first>, e<first + 1>, …, begin at t = 0, and are terminated and truncated in turn; `fields`
    replaces such fields of the block.
    """
    count = len(lengths)
    defaults = {
        "eps_id": np.array([f"e{first + i}" for i in range(count)], dtype=object),
        "t_started": np.zeros(count, dtype=np.int64),
        "terminated": np.arange(count) % 2 == 0,
        "truncated": np.arange(count) % 2 == 1,
    }
    return Block(columns, np.array(lengths, dtype=np.int64), **(defaults | fields))


def replace_columns(block: Block, **columns: Any) -> Block:
    """Return the block with added or replaced columns."""
    return block.with_columns({**block.columns, **columns})


def read_block(dataset: Dataset) -> Block:
    """Read all episodes."""
    return Block.concat([dataset.read(unit) for unit in dataset.units])


def make_block(lengths: Sequence[int] = (3, 5, 2), first: int = 0, seed: int = 0) -> Block:
    """Make episodes e<first>, e<first + 1>, …, with values that depend on the seed."""
    rng = np.random.default_rng([seed, first])
    num_episodes, num_steps = len(lengths), sum(lengths)
    columns = {
        "obs": rng.uniform(-1, 1, (num_steps + num_episodes, 4)).astype(np.float32),
        "actions": rng.integers(0, 3, num_steps),
        "rewards": rng.uniform(size=num_steps).astype(np.float32),
    }
    return build_block(columns, lengths, first)


def make_spec(block: Block) -> DataSpec:
    return DataSpec.from_block(block, OBS_SPACE, ACTION_SPACE, "Test-v0")


def write_blocks(
    folder: str | Path | Location,
    *blocks: Block,
    stem: str | None = None,
    spec: DataSpec | None = None,
    **options: object,
) -> tuple[FileEntry, ...]:
    """Write Parquet files without commits or a manifest."""
    spec = spec or make_spec(blocks[0])
    writer = BlockWriter(resolve(folder), spec, stem or make_file_stem(0, "a1"), **options)  # type: ignore[arg-type]
    for block in blocks:
        writer.write(block)
    return writer.close()


def record(
    folder: str | Path | Location, *blocks: Block, manifest: bool = True, spec: DataSpec | None = None
) -> Location:
    """Write a committed recording with one range per block, with or without a manifest."""
    spec = spec or make_spec(blocks[0])
    location, files, first_episode = resolve(folder), [], 0
    for range_index, block in enumerate(blocks):
        entries = write_blocks(location, block, stem=make_file_stem(range_index, "a1"), spec=spec)
        commit = Commit(
            range=range_index,
            files=entries,
            episodes=block.num_episodes,
            timesteps=block.num_steps,
            first=first_episode,
        )
        write_commit(location, commit)
        files += entries
        first_episode += block.num_episodes
    if manifest:
        write_manifest(location, Manifest(spec=spec.to_json(), files=tuple(files), seed=0))
    return location


def assert_same(actual: Block, expected: Block) -> None:
    """Check that two blocks are equal bit for bit, including dtypes and shapes."""
    assert actual.columns.keys() == expected.columns.keys()
    for name, column in expected.columns.items():
        actual_column = actual.columns[name]
        assert actual_column.dtype == column.dtype.newbyteorder("<"), name
        assert actual_column.shape == column.shape, name
        if column.dtype == object:
            assert actual_column.tolist() == column.tolist(), name
        else:
            assert actual_column.tobytes() == np.ascontiguousarray(column, actual_column.dtype).tobytes(), (
                name
            )
    assert actual.eps_id.tolist() == expected.eps_id.tolist()
    for name in ("length", "t_started", "terminated", "truncated"):
        assert getattr(actual, name).tolist() == getattr(expected, name).tolist(), name
    details = [None if block.details is None else block.details.tolist() for block in (actual, expected)]
    assert details[0] == details[1]


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


KIT = SimpleNamespace(
    observation_space=OBS_SPACE,
    action_space=ACTION_SPACE,
    block=make_block,
    spec=make_spec,
    write=write_blocks,
    record=record,
    assert_same=assert_same,
    file_names=file_names,
)


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """Helpers to make, write and compare episodes."""
    return KIT
