"""Opening data of any kind: complete episodes, rows in any order, and the notes on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import prepare_kit as kit
import pytest

from hindcast.api.input import PrepareSpec
from hindcast.datasets.prepare.opening import open_data, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from support import CARTPOLE, episode_hashes, record, recording
from user_errors import raises_user_error


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_complete_episodes_are_opened_directly(tmp_path, cache):
    record(recording(tmp_path / "data"))
    opened_data = open_reading(Reading((str(tmp_path / "data"),)), cache=cache)
    assert opened_data.paths == [str(tmp_path / "data")]
    assert not cache.exists()


@pytest.mark.parametrize("data_kind", ["recording", "plain", "scrambled"])
def test_unknown_read_option_of_parquet_is_refused(tmp_path, cache, data_kind):
    path = tmp_path / "data"
    if data_kind == "recording":
        record(recording(path))
    else:
        table = kit.make_table(kit.make_block([4, 7, 3]), tmp_path / "table")
        kit.write_files(path, kit.scramble_rows(table) if data_kind == "scrambled" else table)
    with pytest.raises(DataError, match="has 'include_paths', but Parquet has no options"):
        open_reading(Reading((str(path),), options=ReadOptions(options={"include_paths": True})), cache=cache)


def test_scrambled_rows_become_the_original_episodes(tmp_path, cache):
    record(recording(tmp_path / "data", environment=CARTPOLE, output={"format": "Columns"}))
    original = kit.without_empty_infos(kit.read_block(open_data(tmp_path / "data", cache=cache)))
    table = kit.make_table(original, tmp_path / "table")
    for name, rows, note in (
        ("t", table, "40 by t"),
        ("no t", table.drop_columns(["t"]), "40 by chaining new_obs to obs"),
    ):
        path = kit.write_files(tmp_path / name, kit.scramble_rows(rows), num_files=7)
        dataset = open_data(path, cache=cache)
        assert episode_hashes(kit.read_block(dataset)) == episode_hashes(original)
        assert note in dataset.notes[0]


def test_stored_order_is_noted(tmp_path, cache):
    block = kit.make_block([4, 7, 3])
    table = kit.make_table(block, tmp_path / "table").drop_columns(["t"])
    steps = np.concatenate([np.arange(length) for length in block.length])
    interleaved_table = table.take(np.argsort(steps, kind="stable"))
    dataset = open_data(kit.write_files(tmp_path / "rows", interleaved_table, num_files=3), cache=cache)
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)
    assert "3 as stored" in dataset.notes[0]


def test_missing_timestep_is_named(tmp_path, cache):
    table = kit.make_table(kit.make_block([4, 7, 3]), tmp_path / "table")
    path = kit.write_files(tmp_path / "rows", table.take(np.delete(np.arange(14), 6)))
    place = {"path": "part-0.parquet", "row": 6, "episode": "e1", "step": 3}
    with raises_user_error(DataError, "t is 3 after 1: timestep 2 is", **place):
        open_data(path, cache=cache)
    reading = Reading((path,), prepare=PrepareSpec(gaps="Split"))
    dataset = open_data(reading, cache=cache)
    block = kit.read_block(dataset)
    assert block.num_steps == 13
    episodes = sorted(zip(block.eps_id, block.t_started, block.length, strict=True))
    assert episodes == [("e0", 0, 4), ("e1", 0, 2), ("e1", 3, 4), ("e2", 0, 3)]
    (note,) = (note for note in dataset.notes if "missing in 1 place, where an episode was cut" in note)
    assert "row 6" in note
