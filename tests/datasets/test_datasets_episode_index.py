"""Selections of episodes by the index of their ids, ends and returns are those by reading the episodes."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from episode_kit import build_block, make_spec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.merging import merge
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import (
    Commit,
    committed_files,
    make_file_stem,
    read_commits,
    write_commit,
)
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.layouts import ARROW_EPISODES, MESSAGEPACK_EPISODES
from hindcast.formats.parquet.fragments import split_long_episodes
from hindcast.storage.location import resolve
from layers import slow_except


@pytest.fixture(autouse=True)
def small_fragments(monkeypatch):
    """Store episodes of over 150 bytes in fragments."""
    monkeypatch.setattr(
        "hindcast.formats.parquet.file.split_long_episodes",
        lambda block, size, episode_bytes: split_long_episodes(block, size, 150),
    )


def make_block(rng: np.random.Generator, rewards: str, num_episodes: int) -> Block:
    """Make episodes of which some share an id, in random order."""
    lengths = rng.integers(0, 12, num_episodes)
    num_steps = int(lengths.sum())
    columns = {
        "obs": rng.random((num_steps + num_episodes, 4), dtype=np.float32),
        "actions": rng.integers(0, 3, num_steps),
        "rewards": rng.normal(0, 1e3, (num_steps, 2) if rewards == "vectors" else num_steps),
    }
    if rewards == "nan":
        columns["rewards"][rng.random(num_steps) < 0.1] = [np.nan]
    ids = [f"é-{i}" for i in rng.integers(0, 9, num_episodes)]
    ends = rng.random((2, num_episodes)) < 0.5
    return build_block(
        columns, lengths, eps_id=np.array(ids, dtype=object), terminated=ends[0], truncated=ends[1]
    )


def record(folder: Path, blocks: list[Block], layout: str) -> Path:
    """Record each block as a range, in files of at most eight rows, with a manifest made of the stored commits."""
    location, spec = resolve(folder), make_spec(blocks[0])
    for number, block in enumerate(blocks):
        stem = make_file_stem(number, "a1")
        with BlockWriter(location, spec, stem, max_rows_per_file=8, layout=layout) as writer:
            for start in range(0, block.num_episodes, 3):
                writer.write(block.take(range(start, min(start + 3, block.num_episodes))))
            files = writer.close()
        write_commit(location, Commit(range=number, files=files, episodes=0, timesteps=0, first=0))
    files = committed_files(read_commits(location).values())
    write_manifest(location, Manifest(layout=layout, spec=spec.to_json(), files=files))
    return folder


def copy_without_index(folder: Path) -> Path:
    """Copy a recording as an earlier version would have written it."""
    copy = shutil.copytree(folder, folder.with_name(f"{folder.name}-old"))
    manifest_path = copy / "_hindcast" / "manifest.json"
    document = json.loads(manifest_path.read_text())
    assert document.pop("episodeIndex")
    manifest_path.write_text(json.dumps(document))
    return copy


def make_datasets(folders: list[Path]) -> list[Dataset]:
    """Open two recordings in several ways: alone, without repeats, merged with other ids, and parts of them."""
    first, both = open_dataset(folders[0]), open_dataset(folders)
    merged = merge([first, open_dataset(folders[1])], "Rename")
    return [
        first,
        both,
        merged,
        merged.select(np.arange(merged.num_episodes) % 3 > 0).without(["obs"]),
        merge([first.select(np.arange(0, first.num_episodes, 2)), both.select([0, 5])], "Rename"),
        first.select([]),
    ]


def select(dataset: Dataset, has_returns: bool) -> list[tuple[object, ...]]:
    """Return all selections of a dataset: digests, and columns of their episode tables."""
    views = [dataset.split(0.5, seed=1)[1], dataset.filter("terminated == true", "length > 2")]
    if has_returns:
        views += [dataset.filter("return > 1", top=0.5)]
    tables = [view.episode_table(with_returns=has_returns) for view in views]
    return [
        (
            view.digest,
            table.eps_id.tolist(),
            *(column.tobytes() for column in table[1:4]),
            None if table.returns is None else table.returns.tobytes(),
        )
        for view, table in zip(views, tables, strict=True)
    ]


@pytest.mark.parametrize(
    ("rewards", "layout"),
    slow_except(
        [("nan", ARROW_EPISODES), ("numbers", ARROW_EPISODES)],
        itertools.product(["numbers", "nan", "vectors"], [ARROW_EPISODES, MESSAGEPACK_EPISODES]),
    ),
)
def test_selection_by_index_equals_selection_by_reading(tmp_path, monkeypatch, layout, rewards):
    has_returns, rng = rewards != "vectors", np.random.default_rng(0)
    blocks = [make_block(rng, rewards, num_episodes) for num_episodes in (7, 5, 9)]
    # The second recording repeats episodes of the first one.
    repeats = blocks[0].take([5, 0, 3])
    folders = [
        record(tmp_path / f"{i}", parts, layout) for i, parts in enumerate([blocks[:2], [blocks[2], repeats]])
    ]
    old_datasets = make_datasets([copy_without_index(folder) for folder in folders])
    datasets = make_datasets(folders)
    assert all(dataset.indexed_table() is None for dataset in old_datasets[:-1])
    expected = [select(dataset, has_returns) for dataset in old_datasets]
    with monkeypatch.context() as patch:
        if rewards != "nan":
            patch.setattr(EpisodeDataset, "read", None)
        assert [select(dataset, has_returns) for dataset in datasets] == expected
    unit = datasets[1].units[-1]
    assert datasets[1].extract(unit).episode_table().length.tolist() == unit.lengths.tolist()


def test_selection_after_index_was_replaced_reads_the_episodes(kit, tmp_path):
    dataset = open_dataset(kit.record(tmp_path, kit.block()))
    (index,) = tmp_path.glob("_hindcast/episodes-*")
    index.write_bytes(b"x")
    with pytest.raises(DataError, match="is damaged: copy the dataset again"):
        dataset.episode_table()
    index.unlink()
    assert dataset.episode_table(with_returns=True).eps_id.tolist() == ["e0", "e1", "e2"]


def test_index_of_episodes_is_replaced_with_the_manifest(kit, tmp_path):
    for first in (0, 7):
        kit.record(tmp_path, kit.block(first=first))
        assert open_dataset(tmp_path).indexed_table().eps_id[0] == f"e{first}"
        assert len(list(tmp_path.glob("_hindcast/episodes-*"))) == 1
