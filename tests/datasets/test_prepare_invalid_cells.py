"""Null and invalid cells of users' tables: errors with a remedy, or accepted values."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import prepare_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from hindcast.api.input import PrepareSpec
from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.layout import RowError
from user_errors import raises_user_error

IDS = [uuid.UUID(int=1 << 100), uuid.UUID(int=3)]


@pytest.fixture(params=["in order", "scrambled"])
def is_in_order(request: pytest.FixtureRequest) -> bool:
    """True if the rows are stored in order."""
    return bool(request.param == "in order")


def make_columns(lengths: tuple[int, ...] = (12, 9)) -> dict[str, list[Any]]:
    """Make the columns of a table with two episodes, in order."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("eps_id", "t", "obs", "new_obs", "actions", "terminateds")
    }
    for episode, length in enumerate(lengths):
        obs = rng.normal(size=(length + 1, 3)).tolist()
        rows["eps_id"] += [f"e{episode}"] * length
        rows["t"] += range(length)
        rows["obs"] += obs[:-1]
        rows["new_obs"] += obs[1:]
        rows["actions"] += [t % 2 for t in range(length)]
        rows["terminateds"] += [t == length - 1 for t in range(length)]
    return {**rows, "rewards": rng.uniform(size=sum(lengths)).tolist()}


def write_table(folder: Path, is_in_order: bool, **columns: Any) -> str:
    """Write the table with added or replaced columns; if it is not in order, the last row is the first."""
    table = pa.table({**make_columns(), **columns})
    if not is_in_order:
        table = table.take([len(table) - 1, *range(len(table) - 1)])
    pq.write_table(table, folder / "steps.parquet", row_group_size=5)
    return str(folder / "steps.parquet")


def open_block(path: str, **options: Any) -> Block:
    """Open a table, and read all its episodes."""
    return kit.read_block(open_data(Reading((path,), options=ReadOptions(**options))))


def with_nulls(values: list[Any], *rows: int) -> list[Any]:
    return [None if row in rows else value for row, value in enumerate(values)]


REMEDY = "fix it, or remove its episode from the data"


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("rewards", with_nulls([1.0] * 21, 7), f"'rewards' is null; {REMEDY}"),
        ("obs", with_nulls([[0.0, 1.0]] * 21, 7), f"'obs' is null; {REMEDY}"),
        (
            "actions",
            [[0.0, 1.0]] * 7 + [[0.0, None]] * 14,
            f"'actions' holds a null: expected a number; {REMEDY}",
        ),
        (
            "obs",
            [[[0.0], [1.0]]] * 7 + [[[0.0], None]] * 14,
            f"'obs' holds a null: expected a list; {REMEDY}",
        ),
        (
            "eps_id",
            with_nulls(["e"] * 21, 7),
            "'eps_id' is null: every row requires the id of its episode; write one, or leave such rows out with a "
            "`filter` on this column",
        ),
        (
            "terminateds",
            with_nulls(make_columns()["terminateds"], 7),
            "'terminateds' is null: expected true or false; fix it, or name another column under `schema`",
        ),
    ],
)
def test_invalid_cell_is_named_with_its_row_and_a_remedy(
    tmp_path: Path, column: str, values: list[Any], message: str
) -> None:
    next_columns = {"new_obs": [values[0]] * 21} if column == "obs" else {}
    path = write_table(tmp_path, True, **{column: values}, **next_columns)
    with raises_user_error(RowError, f"{re.escape(message)}$", path=str(path), row=7) as caught:
        open_block(path)
    with pytest.raises(DataError) as error_of_inspect:
        inspect_data(Reading((path,)))
    assert str(error_of_inspect.value) == str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1, 1] if row == 7 else [1] for row in range(21)], "has 2 numbers, but the row before has 1"),
        (with_nulls(["x"] * 21, 7), "is null"),
        (pa.array(range(21), pa.timestamp("us")), "is a column of timestamp"),
    ],
)
def test_unreadable_column_is_left_out_unless_it_is_requested(
    tmp_path: Path, is_in_order: bool, values: Any, message: str
) -> None:
    path = write_table(tmp_path, is_in_order, custom=values)
    summary = inspect_data(Reading((path,)))
    notes = [problem.message for problem in summary.problems if "'custom' was left out" in problem.message]
    assert len(notes) == 1
    assert f"'custom' {message}" in notes[0]
    with pytest.raises(DataError, match=f"'custom' {message}"):
        open_block(path, columns=["obs", "actions", "rewards", "custom"])
    columns = ["obs", "actions", "rewards"]
    assert open_block(path, columns=columns).columns.keys() == set(columns)
    assert inspect_data(Reading((path,), options=ReadOptions(columns=columns))).episodes == 2


def test_null_in_a_list_is_located_in_scrambled_rows(tmp_path: Path) -> None:
    values = [[0.0], [1.0]]
    values_with_null = [values[0], None]
    obs = [values_with_null if row == 7 else values for row in range(21)]
    path = write_table(tmp_path, False, obs=obs, new_obs=[values] * 21)
    with pytest.raises(DataError, match="row 8: 'obs' holds a null: expected a list"):
        open_block(path)


def test_text_rewards_are_refused(tmp_path: Path, is_in_order: bool) -> None:
    for text in ("high", "1_000", "9007199254740993"):
        with pytest.raises(
            DataError, match=f"row [012]: 'rewards' is '{text}': expected a number.*; replace"
        ):
            open_block(write_table(tmp_path, is_in_order, rewards=["0.5", text] * 10 + ["0.5"]))


def test_csv_cell_that_is_not_a_number_is_located(tmp_path: Path) -> None:
    rows = [f"e,{t},{'abc' if t == 7 else t / 3},{t},{t % 2},1" for t in range(10)]
    (tmp_path / "steps.csv").write_text("\n".join(["eps_id,t,obs_0,obs_1,actions,rewards", *rows]))
    with raises_user_error(DataError, "'obs_0' is 'abc': expected a number", path="steps.csv", row=7):
        open_block(str(tmp_path / "steps.csv"), ignore_final_observation=True)


def test_csv_cell_that_is_not_a_time_is_located(tmp_path: Path) -> None:
    rows = [f"e,{'soon' if t == 7 else f'2026-01-{t + 10}'},{t / 3},{t % 2},1" for t in range(10)]
    (tmp_path / "steps.csv").write_text("\n".join(["eps_id,t,obs,actions,rewards", *rows]))
    message = "'t' is 'soon': expected a whole number or a time"
    with raises_user_error(DataError, message, path="steps.csv", row=7):
        open_block(str(tmp_path / "steps.csv"), ignore_final_observation=True)


def test_flags_as_text_are_read_in_order_and_out_of_order(tmp_path: Path, is_in_order: bool) -> None:
    flags = ["yes" if flag else "no" for flag in make_columns()["terminateds"]]
    for values in (flags, pa.array(flags).dictionary_encode(), [[flag] for flag in flags]):
        block = open_block(write_table(tmp_path, is_in_order, terminateds=values))
        assert block.terminated.tolist() == [True, True]


class TestNullNextObservations:
    @pytest.mark.parametrize(
        "options", [{"ignore_final_observation": True}, {}], ids=["requested", "terminal"]
    )
    def test_null_at_the_end_becomes_the_last_observation(
        self, tmp_path: Path, is_in_order: bool, options: dict[str, Any]
    ) -> None:
        path = write_table(tmp_path, is_in_order, new_obs=with_nulls(make_columns()["new_obs"], 11, 20))
        block = open_block(path, **options)
        assert sorted(block.length.tolist()) == [9, 12]
        final_rows = block.obs_start + block.length
        assert (block.columns["obs"][final_rows] == block.columns["obs"][final_rows - 1]).all()
        step_observations = block.columns["obs"][block.obs_row]
        assert sorted(map(tuple, step_observations.tolist())) == sorted(map(tuple, make_columns()["obs"]))

    def test_null_at_a_cut_off_end_is_refused_by_default_with_remedies(
        self, tmp_path: Path, is_in_order: bool
    ) -> None:
        flags = [row == 11 for row in range(21)]
        nulls = with_nulls(make_columns()["new_obs"], 11, 20)
        path = write_table(tmp_path, is_in_order, new_obs=nulls, terminateds=flags)
        message = r"row \d+ \(episode .*'new_obs' is null where its episode ends: fill it; or set .*Drop"
        with pytest.raises(DataError, match=message):
            open_block(path)

    def test_null_at_a_cut_off_end_drops_the_last_step(self, tmp_path: Path, is_in_order: bool) -> None:
        """The episode e1 has no flag at its end, as in tables whose next observations are made by SQL's LEAD."""
        columns = make_columns()
        flags = [row == 11 for row in range(21)]
        new_obs = with_nulls(columns["new_obs"], 11, 20)
        path = write_table(tmp_path, is_in_order, new_obs=new_obs, terminateds=flags)
        dataset = open_data(Reading((path,), prepare=PrepareSpec(cut_off_steps="Drop")))
        block = kit.read_block(dataset)
        lengths = dict(zip(block.eps_id.tolist(), block.length.tolist(), strict=True))
        assert lengths == {"e0": 12, "e1": 8}
        episode = block.eps_id.tolist().index("e1")
        first_row = block.obs_start[episode]
        assert block.columns["obs"][first_row : first_row + 9].tolist() == columns["obs"][12:]
        assert "1 last step was left out" in "".join(dataset.notes)

    def test_null_within_an_episode_is_refused(self, tmp_path: Path, is_in_order: bool) -> None:
        path = write_table(tmp_path, is_in_order, new_obs=with_nulls(make_columns()["new_obs"], 4))
        message = f"row {4 + (not is_in_order)} .*'new_obs' is null in a row that does not end its"
        with pytest.raises(DataError, match=message):
            open_block(path, ignore_final_observation=True)


class TestIds:
    @pytest.mark.parametrize("storage", ["extension", "bytes"])
    def test_uuids_become_their_digits(self, tmp_path: Path, is_in_order: bool, storage: str) -> None:
        bytes_of_ids = [IDS[eps_id == "e1"].bytes for eps_id in make_columns()["eps_id"]]
        ids: pa.Array = pa.array(bytes_of_ids, pa.binary(16))
        if storage == "extension":
            ids = pa.ExtensionArray.from_storage(pa.uuid(), ids)
        block = open_block(write_table(tmp_path, is_in_order, eps_id=ids))
        assert sorted(block.eps_id.tolist()) == sorted(eps_id.hex for eps_id in IDS)
        assert dict(zip(block.eps_id, block.length, strict=True)) == {IDS[0].hex: 12, IDS[1].hex: 9}

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ((b"a1", b"\xff"), ["\\xff", "a1"]),
            ((date(2026, 1, 2), date(2026, 1, 3)), ["2026-01-02", "2026-01-03"]),
            (
                (datetime(2026, 1, 2), datetime(2026, 1, 2, 8, 30)),
                ["2026-01-02T00:00:00", "2026-01-02T08:30:00"],
            ),
        ],
    )
    def test_ids_of_other_types_become_text(
        self, tmp_path: Path, is_in_order: bool, values: Any, expected: list[str]
    ) -> None:
        ids = [values[eps_id == "e1"] for eps_id in make_columns()["eps_id"]]
        block = open_block(write_table(tmp_path, is_in_order, eps_id=ids))
        assert sorted(block.eps_id.tolist()) == expected

    def test_categories_of_polars_are_text(self, tmp_path: Path) -> None:
        columns = make_columns()
        for name in ("eps_id", "terminateds"):
            texts = pa.array(list(map(str, columns[name]))).dictionary_encode()
            views = texts.dictionary.cast(pa.string_view())
            columns[name] = pa.DictionaryArray.from_arrays(texts.indices, views)
        feather.write_feather(pa.table(columns), tmp_path / "steps.arrow", compression="uncompressed")
        block = open_block(str(tmp_path / "steps.arrow"))
        assert block.eps_id.tolist() == ["e0", "e1"]
        assert block.terminated.all()

    def test_ids_without_a_text_are_refused_with_a_remedy(self, tmp_path: Path, is_in_order: bool) -> None:
        with pytest.raises(DataError, match=r"'eps_id' is a column of bool: .*; name another column under"):
            open_block(write_table(tmp_path, is_in_order, eps_id=[True] * 21))


def test_rewards_in_lists_of_one_number_are_accepted(tmp_path: Path, is_in_order: bool) -> None:
    expected_block = open_block(write_table(tmp_path, is_in_order))
    rewards = [[reward] for reward in make_columns()["rewards"]]
    block = open_block(write_table(tmp_path, is_in_order, rewards=rewards))
    assert block.columns["rewards"].tolist() == expected_block.columns["rewards"].tolist()


def test_steps_of_a_vector_environment_of_one_are_no_episodes(tmp_path: Path) -> None:
    """Regression: without ids, each row with lists of one item was an episode of one step."""
    names = ("obs", "new_obs", "actions", "rewards", "terminateds")
    columns = make_columns()
    expected_block = open_block(write_table(tmp_path, True))
    pq.write_table(
        pa.table({name: [[cell] for cell in columns[name]] for name in names}), tmp_path / "a.parquet"
    )
    block = open_block(str(tmp_path / "a.parquet"))
    assert block.length.tolist() == expected_block.length.tolist()
    assert block.columns["obs"].ravel().tolist() == expected_block.columns["obs"].ravel().tolist()
    assert block.columns["actions"].ravel().tolist() == expected_block.columns["actions"].tolist()


def make_environments_log(seed: int, has_new_obs: bool, has_counter: bool) -> pd.DataFrame:
    """Make a log with one step of all environments in each row; an episode ends before the last environment."""
    rng = np.random.default_rng(seed)
    num_rows, num_environments = int(rng.integers(3, 9)), int(rng.integers(2, 6))
    shape = (num_rows, num_environments)
    obs = rng.normal(size=(num_rows + 1, num_environments, *rng.integers(1, 4, int(rng.integers(2)))))
    is_end = rng.random(shape) < 0.2
    is_end[rng.integers(num_rows), 0] = True
    columns = {
        "obs": obs[:-1],
        "actions": rng.integers(0, 2, shape),
        "rewards": rng.normal(size=shape),
        "terminateds": is_end,
        **({"new_obs": obs[1:]} if has_new_obs else {}),
    }
    frame = pd.DataFrame({name: values.tolist() for name, values in columns.items()})
    return frame.assign(update=np.arange(num_rows)) if has_counter else frame


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("has_new_obs", [True, False])
def test_steps_of_several_environments_are_refused_with_a_remedy_that_works(
    tmp_path: Path, has_new_obs: bool, seed: int
) -> None:
    """Regression: each row of a vector environment's log was an episode of as many steps as there are environments."""
    frame = make_environments_log(seed, has_new_obs, has_counter=seed % 2 == 1)
    path = str(tmp_path / "a.parquet")
    frame.to_parquet(path)
    options = ReadOptions(ignore_final_observation=True, columns=("obs", "new_obs", "actions", "rewards"))
    options = options if has_new_obs else replace(options, columns=("obs", "actions", "rewards"))
    num_environments = len(frame["rewards"][0])
    with raises_user_error(DataError, f"one step of {num_environments} environments") as error_info:
        open_data(Reading((path,), options=options))
    code = re.search(r"frame\.assign.*?kind='stable'\)", str(error_info.value))
    assert code is not None
    eval(code[0], {"frame": frame}).to_parquet(path)
    block = kit.read_block(open_data(Reading((path,), options=options)))
    rewards = np.array(frame["rewards"].tolist()).T
    assert block.columns["rewards"].tolist() == rewards.ravel().tolist()
    is_end = np.array(frame["terminateds"].tolist()).T
    is_end[:, -1] = True
    assert block.num_episodes == is_end.sum()


@pytest.mark.parametrize("dtype", [bool, int, np.float32, str])
def test_rollouts_of_one_environment_are_refused_with_a_remedy_that_works(
    tmp_path: Path, dtype: type[Any]
) -> None:
    """Regression: only boolean flags were seen to end episodes within a row."""
    frame = make_environments_log(0, has_new_obs=False, has_counter=False)
    frame["terminateds"] = [np.array(flags).astype(dtype).tolist() for flags in frame["terminateds"]]
    path = str(tmp_path / "a.parquet")
    frame.to_parquet(path)
    with raises_user_error(DataError, "steps of one environment, frame.explode") as error_info:
        open_block(path)
    code = re.search(r"environment, (frame\.explode\(.*\))$", str(error_info.value).splitlines()[0])
    assert code is not None
    eval(code[1], {"frame": frame}).to_parquet(path)
    block = open_block(path)
    assert block.columns["rewards"].tolist() == np.concatenate(frame["rewards"].tolist()).tolist()
