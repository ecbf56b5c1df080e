"""Episodes that are stored several times in tables without timesteps, as when a recorder writes its buffer again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pytest

from hindcast.api.input import PrepareSpec
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from support import episode_hashes


@pytest.fixture
def block():
    return kit.make_block([4, 7, 3])


@pytest.fixture
def table(tmp_path: Path, block) -> pa.Table:
    """Rows without `t`; a column is renamed, so that they are read as a table and not as a recording."""
    table = kit.make_table(block, tmp_path / "table").drop_columns(["t"])
    return table.rename_columns(["next_obs" if name == "new_obs" else name for name in table.column_names])


def open_table(tmp_path: Path, table: pa.Table, **prepare: Any):
    path = kit.write_files(tmp_path / "rows", table, num_files=2)
    return open_data(Reading((path,), prepare=PrepareSpec(**prepare)), cache=tmp_path / "cache")


def test_repeated_episodes_count_once_and_are_noted(tmp_path: Path, table: pa.Table, block) -> None:
    repeated_table = pa.concat_tables([table, table, table.slice(4, 7)])
    dataset = open_table(tmp_path, repeated_table)
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)
    assert "rows were put in order: 3 as stored" in dataset.notes[0]
    (note,) = (note for note in dataset.notes if "repeat" in note)
    assert note.startswith("4 stored episodes repeat others (the same id and the same content), and count on")
    assert "part-0.parquet, row 14 (episode e0)" in note


def test_repeated_episodes_without_next_observations_count_once(tmp_path: Path, table: pa.Table) -> None:
    path = kit.write_files(tmp_path / "rows", pa.concat_tables([table, table]).drop_columns(["next_obs"]))
    options = ReadOptions(ignore_final_observation=True)
    dataset = open_data(Reading((path,), options=options), cache=tmp_path / "cache")
    assert (dataset.num_episodes, dataset.num_steps) == (3, 14)
    assert any("3 stored episodes repeat others" in note for note in dataset.notes)


@pytest.mark.parametrize("order", ["Auto", "Chain"])
def test_scrambled_rows_of_repeated_episodes_are_chained_once(
    tmp_path: Path, table: pa.Table, block, order: str
) -> None:
    dataset = open_table(tmp_path, kit.scramble_rows(pa.concat_tables([table, table])), order=order)
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)
    assert any("14 rows repeat others, and count once" in note for note in dataset.notes)


def test_episode_stored_again_after_its_prefix_counts_once(tmp_path: Path, table: pa.Table, block) -> None:
    dataset = open_table(tmp_path, pa.concat_tables([table.slice(0, 4), table.slice(4, 3), table.slice(4)]))
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)
    assert any("3 rows repeat others" in note for note in dataset.notes)


@pytest.mark.parametrize("order", ["Stored", "Chain"])
def test_repeated_episodes_are_refused_on_request(tmp_path: Path, table: pa.Table, order: str) -> None:
    with pytest.raises(DataError, match=r"row \d+ \(episode e\d\): .*but prepare.duplicates is Refuse"):
        open_table(tmp_path, pa.concat_tables([table, table]), duplicates="Refuse", order=order)


def test_different_episode_with_the_same_id_is_kept(tmp_path: Path, table: pa.Table) -> None:
    other_table = kit.replace_column(table, "rewards", np.zeros(14))
    dataset = open_table(tmp_path, pa.concat_tables([table, other_table]), order="Stored")
    assert (dataset.num_episodes, dataset.num_steps) == (6, 28)
    assert any("3 times an episode continues after its end" in note for note in dataset.notes)


def test_equal_timesteps_within_an_episode_are_kept(tmp_path: Path) -> None:
    """All timesteps of the episode are equal, as when a walker pushes against a wall."""
    block = kit.make_block([6])
    block.columns["obs"][:] = 0
    block.columns["actions"][:] = 1
    block.columns["rewards"][:] = 0
    table = kit.make_table(block, tmp_path / "table").drop_columns(["t"])
    dataset = open_table(tmp_path, pa.concat_tables([table, table]))
    assert (dataset.num_episodes, dataset.num_steps) == (1, 6)


@pytest.mark.parametrize("order", ["Stored", "Chain", "Time"])
def test_infos_in_another_order_and_another_nan_are_equal(
    tmp_path: Path, table: pa.Table, order: str
) -> None:
    """Content that differs only in its bytes is equal, as it is when datasets are opened or merged."""
    nan_values = np.array([0x7FF8000000000000, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    infos = ['{"x": 1, "y": 2}', '{"y":2,"x":1}']
    equal_tables = [
        kit.replace_column(table, "rewards", np.full(14, nan_values[i]))
        .append_column("infos", pa.array([infos[i]] * 14))
        .append_column("t", pa.array([*range(4), *range(7), *range(3)]))
        for i in range(2)
    ]
    dataset = open_table(tmp_path, pa.concat_tables(equal_tables), order=order)
    assert (dataset.num_episodes, dataset.num_steps) == (3, 14)
