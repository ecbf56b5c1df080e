"""Rules for repeated rows, missing rows and unfinished episodes, and the notes on them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.api.input import FilterTerm, PrepareSpec
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.episodes.details import to_text
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from support import episode_hashes
from user_errors import raises_user_error


@pytest.fixture
def block():
    return kit.make_block([4, 7, 3])


@pytest.fixture
def table(tmp_path, block) -> pa.Table:
    return kit.make_table(block, tmp_path / "table")


def open_rows(path: str, prepare: dict[str, Any] | None = None, **options: Any):
    return open_data(Reading((path,), options=ReadOptions(**options), prepare=PrepareSpec(**(prepare or {}))))


def test_repeated_rows_count_once_and_are_noted(tmp_path, block, table):
    rows = pa.concat_tables([kit.scramble_rows(table), table.slice(3, 2)])
    path = kit.write_files(tmp_path / "rows", rows, 2)
    dataset = open_rows(path)
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)
    assert any("2 rows repeat others" in note for note in dataset.notes)
    with pytest.raises(DataError, match=r"the row repeats .*, but prepare.duplicates is Refuse"):
        open_rows(path, {"duplicates": "Refuse"})


def test_timestep_with_two_contents_is_refused(tmp_path, table):
    other_row = kit.replace_column(table.slice(5, 1), "rewards", [9.0])
    path = kit.write_files(tmp_path / "rows", pa.concat_tables([kit.scramble_rows(table), other_row]))
    with pytest.raises(
        DataError,
        match=r"row 14 \(episode e1, t 1\): the timestep occurs twice.* set prepare.episodes to File",
    ):
        open_rows(path)


SPLITS = [
    ("train/{}.parquet", "test/{}.parquet"),
    ("train-{}.parquet", "validation-{}.parquet"),
    ("split=train/{}.parquet", "split=test/{}.parquet"),
    ("2025/log_{}.parquet", "2026/log_{}.parquet"),
    ("Train_{}.parquet", "eval_{}.parquet"),
]


@pytest.mark.parametrize("names", SPLITS)
def test_splits_with_the_same_ids_are_refused_with_a_remedy_that_works(tmp_path, names):
    """Regression: the advice was prepare.episodes: File, which cuts an episode that crosses files."""
    blocks = [kit.make_block([5, 7], seed=seed) for seed in (1, 2)]
    for number, (block, name) in enumerate(zip(blocks, names, strict=True)):
        table = kit.make_table(block, tmp_path / f"table{number}")
        for part in range(2):
            path = tmp_path / "data" / name.format(part)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.slice(part * 3, 9 if part else 3), path)
    with raises_user_error(DataError, "the timestep occurs twice") as error_info:
        open_rows(str(tmp_path / "data"))
    advice = re.search(r"if (\S+) and (\S+) count their own episodes, name each as", str(error_info.value))
    assert advice is not None
    dataset = open_data([Reading((path,)) for path in advice.groups()])
    block = kit.read_block(dataset)
    assert sorted(block.length.tolist()) == [5, 5, 7, 7]
    rewards = np.concatenate([block.columns["rewards"] for block in blocks])
    assert sorted(block.columns["rewards"].tolist()) == sorted(rewards.tolist())


def with_times(table: pa.Table, time_type: str) -> pa.Table:
    """Replace the timesteps by times of a type, three days apart."""
    times = np.datetime64("2026-01-30", "us") + table["t"].to_numpy() * np.timedelta64(3, "D")
    column = {
        "numbers": lambda: pa.array(times.astype("datetime64[D]").astype(np.int64)),
        "timestamps": lambda: pa.array(times),
        "zoned": lambda: pa.array(times).cast(pa.timestamp("ns", "Europe/Berlin")),
        "dates": lambda: pa.array(times).cast(pa.date32()),
        "text": lambda: pa.array([f"{time}" for time in times]),
        "zoned text": lambda: pa.array([f"{time}+02:00" for time in times]),
    }[time_type]()
    return kit.replace_column(table, "t", column)


@pytest.mark.parametrize("time_type", ["timestamps", "zoned", "dates", "text", "zoned text"])
def test_times_order_rows(tmp_path: Path, block: Block, table: pa.Table, time_type: str) -> None:
    path = kit.write_files(tmp_path / "rows", with_times(kit.scramble_rows(table), time_type), 2)
    dataset = open_rows(path)
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)
    assert any("put in order: 3 by t" in note for note in dataset.notes)


def test_numbers_that_do_not_count_timesteps_are_joined_on_request(
    tmp_path: Path, block: Block, table: pa.Table
) -> None:
    path = kit.write_files(tmp_path / "rows", with_times(kit.scramble_rows(table), "numbers"))
    with pytest.raises(DataError, match=r"is missing, unless t orders .* \(then set prepare.gaps to Join\)"):
        open_rows(path)
    dataset = open_rows(path, {"gaps": "Join"})
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)
    assert not any("after timestep 0" in note for note in dataset.notes)


def test_rows_around_missing_rows_are_joined_on_request(tmp_path: Path, table: pa.Table) -> None:
    sparse_table = table.take([0, 2, 3, 4, 8, 10, 11, 13]).drop_columns(["t"])
    path = kit.write_files(tmp_path / "rows", sparse_table)
    with pytest.raises(DataError, match="cannot be ordered by"):
        open_rows(path)
    prepared_block = kit.read_block(open_rows(path, {"gaps": "Join"}))
    assert (prepared_block.length.tolist(), prepared_block.t_started.tolist()) == ([3, 3, 2], [0, 0, 0])
    assert (prepared_block.columns["rewards"] == sparse_table["rewards"].to_numpy()).all()


def test_filtering_times_without_next_observations_is_refused(tmp_path: Path, table: pa.Table) -> None:
    path = kit.write_files(tmp_path / "rows", with_times(table.drop_columns(["new_obs"]), "dates"))
    term = FilterTerm(column="rewards", op="<", value=0.6)
    with pytest.raises(DataError, match="'t' does not count timesteps and the column 'new_obs' is missing"):
        open_rows(path, filter=(term,), ignore_final_observation=True)


def test_mixing_numbers_and_times_is_refused(tmp_path: Path, table: pa.Table) -> None:
    kit.write_files(tmp_path / "rows", table)
    kit.write_files(tmp_path / "rows" / "more", with_times(table, "dates"))
    with pytest.raises(DataError, match="'t' holds numbers in one and times in the other"):
        open_rows(str(tmp_path / "rows"))


@pytest.mark.parametrize("rule", ["Keep", "Drop", "Refuse"])
def test_unfinished_episodes_follow_the_rule(tmp_path, table, rule):
    unfinished_table = kit.replace_column(table, "truncateds", np.zeros(14, dtype=bool))
    path = kit.write_files(tmp_path / "rows", kit.scramble_rows(unfinished_table))
    if rule == "Refuse":
        message = r"\(episode e1, t \d\): the episode ends neither terminated nor truncated"
        with pytest.raises(DataError, match=message):
            open_rows(path, {"unfinished": rule})
        return
    dataset = open_rows(path, {"unfinished": rule})
    prepared_block = kit.read_block(dataset)
    assert set(prepared_block.eps_id) == ({"e0", "e1", "e2"} if rule == "Keep" else {"e0", "e2"})
    expected_notes = {"Keep": "1 episode ends neither", "Drop": "7 rows of unfinished episodes were dropped"}
    assert any(expected_notes[rule] in note for note in dataset.notes)


def test_chaining_requires_distinct_observations(tmp_path, table):
    equal_observations = pa.array([[0.0, 0.0, 0.0]] * 14, table.schema.field("obs").type)
    rows = kit.replace_column(table, "obs", equal_observations).drop_columns(["t"])
    path = kit.write_files(tmp_path / "rows", kit.scramble_rows(rows))
    with pytest.raises(DataError, match="an observation occurs twice in the episode"):
        open_rows(path, {"order": "Chain"})
    with pytest.raises(DataError, match="cannot be ordered by 't' or by their observations"):
        open_rows(path)


def test_rows_without_ids_are_cut_where_episodes_end(tmp_path, block, table):
    rows = table.drop_columns(["eps_id", "t"])
    dataset = open_rows(kit.write_files(tmp_path / "rows", rows, num_files=3))
    prepared_block = kit.read_block(dataset)
    assert prepared_block.length.tolist() == block.length.tolist()
    assert (prepared_block.columns["obs"] == block.columns["obs"]).all()
    names = [name.rsplit("/")[-1] for name in prepared_block.eps_id]
    assert names == ["part-0.parquet:0", "part-1.parquet:0", "part-2.parquet:2"]


def test_episodes_without_ids_may_span_partitions(tmp_path, monkeypatch, block, table):
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1)
    rows = table.drop_columns(["eps_id", "t"])
    prepared_block = kit.read_block(open_rows(kit.write_files(tmp_path / "rows", rows, num_files=9)))
    assert prepared_block.length.tolist() == block.length.tolist()
    assert (prepared_block.columns["obs"] == block.columns["obs"]).all()


def test_missing_next_observations_are_refused_or_the_last_one_is_repeated(tmp_path, block, table):
    path = kit.write_files(tmp_path / "rows", kit.scramble_rows(table.drop_columns(["new_obs"])))
    with pytest.raises(DataError, match=r"\.parquet: the column 'new_obs' is missing.*ignoreFinalObs"):
        open_rows(path)
    prepared_block = kit.read_block(open_rows(path, ignore_final_observation=True))
    final_rows = prepared_block.obs_start + prepared_block.length
    assert (prepared_block.columns["obs"][final_rows] == prepared_block.columns["obs"][final_rows - 1]).all()
    assert prepared_block.num_steps == 14


@pytest.mark.parametrize("missing_columns", [[], ["t"], ["eps_id", "t"]])
def test_last_steps_without_next_observation_are_dropped(tmp_path, table, missing_columns):
    """Prepare episodes of 4 steps (terminated), 7 steps (truncated) and 3 steps (without a flag at the end)."""
    end_rows = {"terminateds": [3], "truncateds": [10]}
    for name, rows in end_rows.items():
        table = kit.replace_column(table, name, np.isin(np.arange(14), rows))
    path = kit.write_files(tmp_path / "rows", table.drop_columns(["new_obs", *missing_columns]))
    dataset = open_rows(path, {"cut_off_steps": "Drop"})
    prepared_block = kit.read_block(dataset)
    assert prepared_block.length.tolist() == [4, 6, 2]
    assert prepared_block.terminated.tolist() == [True, False, False]
    assert prepared_block.truncated.tolist() == [False, True, False]
    observations = np.array(table["obs"].to_pylist())
    final_observations = prepared_block.columns["obs"][prepared_block.obs_start + prepared_block.length]
    assert final_observations.tolist() == observations[[3, 10, 13]].tolist()
    rewards = np.delete(table["rewards"].to_numpy(), [10, 13])
    assert prepared_block.columns["rewards"].tolist() == rewards.tolist()
    notes = "".join(dataset.notes)
    assert "1 episode has no observation after its last step" in notes
    assert "2 last steps were left out" in notes


def test_change_of_cut_off_steps_prepares_data_again(tmp_path, table):
    path = kit.write_files(tmp_path / "rows", table.drop_columns(["new_obs"]))
    num_steps, num_steps_without_last = (
        open_rows(path, prepare, ignore_final_observation=True).num_steps
        for prepare in ({}, {"cut_off_steps": "Drop"})
    )
    assert (num_steps, num_steps_without_last) == (14, 13)


def test_episode_of_one_dropped_step_disappears(tmp_path, table):
    rows = table.slice(0, 1).drop_columns(["new_obs"])
    with pytest.raises(DataError, match="no rows that form an episode"):
        open_rows(kit.write_files(tmp_path / "rows", rows), {"cut_off_steps": "Drop"})


@pytest.mark.parametrize("is_scrambled", [False, True])
@pytest.mark.parametrize("time_type", ["numbers", "times", "none"])
def test_filter_keeps_every_passing_transition(tmp_path, table, is_scrambled, time_type):
    tables = {"numbers": table, "times": with_times(table, "dates"), "none": table.drop_columns(["t"])}
    rows = tables[time_type]
    path = kit.write_files(tmp_path / "rows", kit.scramble_rows(rows) if is_scrambled else rows, num_files=2)
    term = FilterTerm(column="rewards", op="<", value=0.6)
    prepared_block = kit.read_block(open_rows(path, filter=(term,)))
    expected = {
        (row["eps_id"], tuple(row["obs"]), tuple(row["new_obs"]), row["terminateds"], row["truncateds"])
        for row in table.to_pylist()
        if row["rewards"] < 0.6
    }
    obs = [tuple(row) for row in prepared_block.columns["obs"].tolist()]
    transitions = zip(
        prepared_block.eps_id[prepared_block.episode_of_step],
        [obs[row] for row in prepared_block.obs_row],
        [obs[row + 1] for row in prepared_block.obs_row],
        prepared_block.step_flags(prepared_block.terminated).tolist(),
        prepared_block.step_flags(prepared_block.truncated).tolist(),
        strict=True,
    )
    assert set(transitions) == expected


def test_filter_on_complete_episodes_sets_t_started(tmp_path, table, block):
    term = FilterTerm(column="t", op=">=", value=2)
    prepared_block = kit.read_block(open_rows(kit.write_files(tmp_path / "rows", table), filter=(term,)))
    assert prepared_block.t_started.tolist() == [2, 2, 2]
    assert prepared_block.length.tolist() == [2, 5, 1]


@pytest.mark.parametrize("layout", ["columns", "episodes/arrow", "episodes/messagepack", "scrambled"])
def test_filter_compares_the_agent(tmp_path, block, layout):
    agents = ["ann", "bob", None]
    block = replace(block, details=np.array([to_text(agent_id=agent) for agent in agents], dtype=object))
    stored_layout = "columns" if layout == "scrambled" else layout
    folder, spec = resolve(tmp_path / "data"), DataSpec.from_block(block)
    with BlockWriter(folder, spec, "all", layout=stored_layout) as writer:
        writer.write(block)
    path = str(tmp_path / "data")
    if layout == "scrambled":
        agents_by_episode = {"e0": "ann", "e1": "bob", "e2": "cid"}
        rows = kit.make_table(block, tmp_path / "rows")
        agents = [agents_by_episode[name] for name in rows["eps_id"].to_pylist()]
        rows = kit.scramble_rows(kit.replace_column(rows, "agent_id", agents))
        path = kit.write_files(tmp_path / "mixed", rows)
    term = FilterTerm(column="agent_id", op="==", value="bob")
    prepared_block = kit.read_block(open_rows(path, filter=(term,)))
    assert prepared_block.eps_id.tolist() == (["e1/bob"] if layout == "scrambled" else ["e1"])
    assert prepared_block.length.tolist() == [7]


@pytest.mark.parametrize(("op", "value"), [("==", "ann"), ("in", ["ann", "bob"])])
@pytest.mark.parametrize("is_scrambled", [False, True])
def test_filter_on_agent_without_agents_passes_nothing(tmp_path, table, op, value, is_scrambled):
    path = kit.write_files(tmp_path / "rows", kit.scramble_rows(table) if is_scrambled else table)
    with pytest.raises(DataError, match="holds no rows that pass `filter`"):
        open_rows(path, filter=(FilterTerm(column="agent_id", op=op, value=value),))


def test_filter_on_unknown_column_names_the_columns(tmp_path, table):
    path = kit.write_files(tmp_path / "rows", table)
    with pytest.raises(DataError, match=r"no column 'agnt', .* did you mean"):
        open_rows(path, filter=(FilterTerm(column="agnt", op="==", value="ann"),))


@pytest.mark.slow
def test_numbers_that_are_integers_in_one_file_are_widened(tmp_path, monkeypatch, table):
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1)
    integer_table = kit.replace_column(table, "rewards", [1] * 14)
    (tmp_path / "rows").mkdir()
    kit.write_files(tmp_path / "rows/a", kit.scramble_rows(integer_table.slice(0, 11)))
    kit.write_files(tmp_path / "rows/b", kit.scramble_rows(table.slice(11)))
    prepared_block = kit.read_block(open_rows(str(tmp_path / "rows")))
    assert prepared_block.columns["rewards"].dtype == np.float64
    assert sorted(prepared_block.columns["rewards"])[-11:] == [1.0] * 11
