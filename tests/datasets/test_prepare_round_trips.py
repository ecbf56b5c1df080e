"""Episodes in random spaces are restored from rows in any order, in process and on Ray."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import prepare_kit as kit
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.datasets.hooks import Hooks
from hindcast.datasets.prepare import opening, preparer
from layers import examples
from random_data import recordings
from support import episode_hashes


@examples(40)
@given(recordings(), st.integers(0, 99), st.integers(1, 5))
def test_scrambled_rows_become_the_original_episodes(recording, seed, num_files):
    block = kit.without_empty_infos(recording[0])
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        table = kit.make_table(block, folder / "table", recording[1])
        path = kit.write_files(folder / "rows", kit.scramble_rows(table, seed), min(num_files, len(table)))
        prepared_block = kit.read_block(opening.open_data(path, cache=folder / "cache"))
    assert episode_hashes(kit.without_empty_infos(prepared_block)) == episode_hashes(block)


@examples(40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 99), st.booleans())
def test_rows_without_timesteps_become_the_original_episodes(lengths, seed, is_scrambled):
    block = kit.make_block(lengths, seed)
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        table = kit.make_table(block, folder / "table").drop_columns(["t"])
        path = kit.write_files(folder / "rows", kit.scramble_rows(table, seed) if is_scrambled else table)
        prepared_block = kit.read_block(opening.open_data(path, cache=folder / "cache"))
    assert episode_hashes(prepared_block) == episode_hashes(block)


def test_progress_counts_files_and_partitions(tmp_path):
    block = kit.make_block(np.arange(1, 20).tolist())
    path = kit.write_files(tmp_path / "rows", kit.make_table(block, tmp_path / "table"), num_files=4)
    calls: list[tuple[int, int]] = []
    hooks = Hooks(lambda _, done, total: calls.append((done, total)))
    opening.open_data(path, cache=tmp_path / "cache", hooks=hooks)
    assert calls == sorted(calls)
    assert len(set(calls)) >= 5
    assert {total for _, total in calls} == {5}  # 4 files and a partition
    assert calls[-1][0] == 5


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
@pytest.mark.filterwarnings("ignore")
def test_preparing_on_ray_gives_the_same_data(tmp_path, monkeypatch):
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 13)
    block = kit.make_block(np.arange(1, 60).tolist())
    rows = kit.scramble_rows(kit.make_table(block, tmp_path / "table"))
    path = kit.write_files(tmp_path / "rows", rows, num_files=4)
    local_dataset = opening.open_data(path, cache=tmp_path / "here")
    monkeypatch.setattr(preparer, "_MAX_LOCAL_BYTES", 0)
    progress_calls: list[tuple[str, int, int]] = []
    hooks = Hooks(lambda *call: progress_calls.append(call))
    dataset_from_ray = opening.open_data(path, cache=tmp_path / "there", hooks=hooks)
    assert dataset_from_ray.digest == local_dataset.digest
    assert dataset_from_ray.notes == local_dataset.notes
    assert progress_calls[-1][1] == progress_calls[-1][2] > 1
    assert episode_hashes(kit.read_block(dataset_from_ray)) == episode_hashes(block)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
@pytest.mark.filterwarnings("ignore")
def test_user_error_on_ray_is_reported_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(preparer, "_MAX_LOCAL_BYTES", 0)
    table = kit.make_table(kit.make_block([4, 7, 3]), tmp_path / "table")
    path = kit.write_files(tmp_path / "rows", table.take(np.delete(np.arange(14), 6)))
    with pytest.raises(opening.DataError, match=r"row 6 \(episode e1, t 3\): t is 3 after 1"):
        opening.open_data(path, cache=tmp_path / "cache")
