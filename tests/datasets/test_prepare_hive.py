"""Tables in folders named `name=value`, as Spark, Hive and pandas write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import prepare_kit as kit
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from hindcast.api.input import FilterTerm, PrepareSpec
from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from support import episode_hashes
from user_errors import raises_user_error


def write_hive_folders(
    folder: Path, block: Block, key: str = "eps_id", dropped_columns: Sequence[str] = ("eps_id",)
) -> Path:
    """Write a folder `<key>=<id>` for each episode; its later rows are in the file that is listed first."""
    table = kit.make_table(block, folder.parent / "flat")
    for name in block.eps_id.tolist():
        rows = table.filter(pc.equal(table["eps_id"], name)).drop_columns(list(dropped_columns))
        key_folder = folder / f"{key}={name}"
        key_folder.mkdir(parents=True)
        pq.write_table(rows.slice(3), key_folder / "part-0.parquet")
        pq.write_table(rows.slice(0, 3), key_folder / "part-1.parquet")
    return folder


def test_folder_per_episode_names_the_episode(tmp_path):
    block = kit.make_block([5, 5, 6])
    folder = write_hive_folders(tmp_path / "hive", block)
    assert episode_hashes(kit.read_block(open_data(folder))) == episode_hashes(block)
    assert episode_hashes(kit.read_block(open_data(f"{folder}/*"))) == episode_hashes(block)
    summary = inspect_data(Reading((str(folder),)))
    assert (summary.episodes, summary.timesteps) == (3, 16)


def test_schema_may_name_a_key(tmp_path):
    block = kit.make_block([5, 5])
    folder = write_hive_folders(tmp_path / "hive", block, key="customer")
    reading = Reading((str(folder),), options=ReadOptions(schema={"eps_id": "customer"}))
    episodes = kit.read_block(open_data(reading))
    assert sorted(episodes.eps_id) == ["e0", "e1"]
    assert "customer" not in episodes.columns


@pytest.mark.parametrize(
    ("values", "expected"),
    [(("2", "10"), [2, 10]), (("01", "2"), ["01", "2"]), (("a%2Fb", "c"), ["a/b", "c"])],
)
def test_other_keys_become_columns(tmp_path, values, expected):
    table = kit.make_table(kit.make_block([4, 4]), tmp_path / "flat")
    for i, value in enumerate(values):
        kit.write_files(tmp_path / "hive" / f"day={value}", table.slice(4 * i, 4))
    episodes = kit.read_block(open_data(tmp_path / "hive"))
    days = dict(zip(episodes.eps_id, episodes.columns["day"][::4].tolist(), strict=True))
    assert days == {"e0": expected[0], "e1": expected[1]}


def test_filter_compares_keys(tmp_path):
    table = kit.make_table(kit.make_block([4, 4]), tmp_path / "flat")
    for i in range(2):
        kit.write_files(tmp_path / "hive" / f"day={i}", table.slice(4 * i, 4))
    options = ReadOptions(filter=[FilterTerm(column="day", op="==", value=1)])
    episodes = kit.read_block(open_data(Reading((str(tmp_path / "hive"),), options=options)))
    assert episodes.eps_id.tolist() == ["e1"]


def test_keys_of_csv_tables_are_read(tmp_path):
    table = kit.make_table(kit.make_block([4, 3]), tmp_path / "flat")
    scalar_table = table.select(["t", "actions", "rewards", "terminateds", "truncateds"])
    for name in ("obs", "new_obs"):
        numbers = pc.list_element(table[name], 0)
        scalar_table = scalar_table.append_column(name, numbers)
    for name, rows in (("e0", scalar_table.slice(0, 4)), ("e1", scalar_table.slice(4))):
        key_folder = tmp_path / "hive" / f"episode={name}"
        key_folder.mkdir(parents=True)
        pacsv.write_csv(rows, key_folder / "rows.csv")
    episodes = kit.read_block(open_data(tmp_path / "hive"))
    assert dict(zip(episodes.eps_id, episodes.length.tolist(), strict=True)) == {"e0": 4, "e1": 3}


def test_column_of_the_file_takes_precedence_over_a_key(tmp_path):
    block = kit.make_block([5, 5])
    folder = write_hive_folders(tmp_path / "hive", block, dropped_columns=())
    assert episode_hashes(kit.read_block(open_data(folder))) == episode_hashes(block)


def test_null_key_is_named_in_the_error(tmp_path):
    table = kit.make_table(kit.make_block([4]), tmp_path / "flat").drop_columns(["eps_id"])
    kit.write_files(tmp_path / "hive" / "eps_id=__HIVE_DEFAULT_PARTITION__", table)
    with raises_user_error(DataError, "'eps_id' is null", path="part-0.parquet", row=0):
        open_data(tmp_path / "hive")


def test_contradicting_observations_between_files_are_refused(tmp_path):
    """Without ids, consecutive timesteps do not show that two files contain the same episode."""
    table: pa.Table = kit.make_table(kit.make_block([2, 5]), tmp_path / "flat").drop_columns(["eps_id"])
    folder = tmp_path / "rows"
    folder.mkdir()
    first_table = table.slice(0, 2)
    for name in ("terminateds", "truncateds"):
        first_table = kit.replace_column(first_table, name, [False, False])
    pq.write_table(first_table, folder / "a.parquet")
    pq.write_table(table.slice(4), folder / "b.parquet")
    message = "differs from the next observation of .*a.parquet's last row"
    with raises_user_error(DataError, message, path="b.parquet", row=0):
        open_data(folder)
    split_block = kit.read_block(open_data(Reading((str(folder),), prepare=PrepareSpec(gaps="Split"))))
    assert sorted(split_block.length.tolist()) == [2, 3]
