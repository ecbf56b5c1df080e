"""Cells of users' tables that are null or odd: what is said of them, and what is made of them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.api.input import PrepareSpec
from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.layout import RowError

IDS = [uuid.UUID(int=1 << 100), uuid.UUID(int=3)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["whole", "scrambled"])
def is_whole(request: pytest.FixtureRequest) -> bool:
    """Whether the rows lie in order, so that they are opened as they are."""
    return bool(request.param == "whole")


def steps(lengths: tuple[int, ...] = (12, 9)) -> dict[str, list[Any]]:
    """Rows of two episodes in order."""
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


def write(folder: Path, is_whole: bool, **columns: Any) -> str:
    """A file of the steps with other columns; scrambled by putting the last row first."""
    table = pa.table({**steps(), **columns})
    if not is_whole:
        table = table.take([len(table) - 1, *range(len(table) - 1)])
    pq.write_table(table, folder / "steps.parquet", row_group_size=5)
    return str(folder / "steps.parquet")


def opened(path: str, **options: Any) -> Block:
    return kit.read_block(open_data(Reading((path,), options=ReadOptions(**options))))


def with_null(values: list[Any], *rows: int) -> list[Any]:
    return [None if row in rows else value for row, value in enumerate(values)]


WAY_OUT = "fix it, or remove its episode from the data"


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("rewards", with_null([1.0] * 21, 7), f"'rewards' is null; {WAY_OUT}"),
        ("obs", with_null([[0.0, 1.0]] * 21, 7), f"'obs' is null; {WAY_OUT}"),
        (
            "obs",
            [[0.0, None if row == 7 else 1.0] for row in range(21)],
            f"'obs' holds a null: expected a number; {WAY_OUT}",
        ),
        (
            "obs",
            [[[0.0], None if row == 7 else [1.0]] for row in range(21)],
            f"'obs' holds a null: expected a list; {WAY_OUT}",
        ),
        (
            "eps_id",
            with_null(steps()["eps_id"], 7),
            "'eps_id' is null: every row requires the id of its episode",
        ),
        (
            "terminateds",
            with_null(steps()["terminateds"], 7),
            "'terminateds' is null: expected true or false; fix it, or name another column by `schema`",
        ),
    ],
)
def test_what_is_odd_is_named_with_its_row_and_a_way_out(
    tmp_path: Path, column: str, values: list[Any], said: str
) -> None:
    following = {"new_obs": [values[0]] * 21} if column == "obs" else {}
    path = write(tmp_path, True, **{column: values}, **following)
    with pytest.raises(RowError) as caught:
        opened(path)
    assert str(caught.value) == f"{path}, row 7: {said}"
    assert caught.value.row == 7
    with pytest.raises(DataError) as inspected:
        inspect_data(Reading((path,)))
    assert str(inspected.value) == str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[1, 1] if row == 7 else [1] for row in range(21)], "has 2 numbers, but the row before has 1"),
        (with_null(["x"] * 21, 7), "is null"),
        (pa.array(range(21), pa.timestamp("us")), "is a column of timestamp"),
    ],
)
def test_a_column_that_cannot_be_read_can_be_left_out(
    tmp_path: Path, is_whole: bool, values: Any, said: str
) -> None:
    path = write(tmp_path, is_whole, custom=values)
    for look in (opened, lambda path: inspect_data(Reading((path,)))):
        with pytest.raises(
            DataError, match=f"'custom' {said}.*; fix it, or leave out the column with `columns`"
        ):
            look(path)
    columns = ["obs", "actions", "rewards"]
    assert opened(path, columns=columns).columns.keys() == set(columns)
    assert inspect_data(Reading((path,), options=ReadOptions(columns=columns))).episodes == 2


@pytest.mark.parametrize("values", [[0.0, 1.0], [[0.0], [1.0]]])
def test_a_null_in_a_list_has_its_row_in_scrambled_rows_too(tmp_path: Path, values: list[Any]) -> None:
    odd = [values[0], None]
    obs = [odd if row == 7 else values for row in range(21)]
    path = write(tmp_path, False, obs=obs, new_obs=[values] * 21)
    with pytest.raises(DataError, match="row 8: 'obs' holds a null: expected a"):
        opened(path)


def test_text_rewards_are_refused(tmp_path: Path, is_whole: bool) -> None:
    with pytest.raises(DataError, match=r"row 0: 'rewards' is text.*[:;] convert it to numbers"):
        opened(write(tmp_path, is_whole, rewards=["0.5"] * 21))


def test_a_cell_of_csv_that_is_no_number_has_its_row(tmp_path: Path) -> None:
    rows = [f"e,{t},{'abc' if t == 7 else t / 3},{t},{t % 2},1" for t in range(10)]
    (tmp_path / "steps.csv").write_text("\n".join(["eps_id,t,obs_0,obs_1,actions,rewards", *rows]))
    with pytest.raises(DataError, match=r"steps\.csv, row 7: 'obs_0' is 'abc': expected a number"):
        opened(str(tmp_path / "steps.csv"), ignore_final_observation=True)


def test_a_time_that_is_none_has_its_row(tmp_path: Path) -> None:
    rows = [f"e,{'soon' if t == 7 else f'2026-01-{t + 10}'},{t / 3},{t % 2},1" for t in range(10)]
    (tmp_path / "steps.csv").write_text("\n".join(["eps_id,t,obs,actions,rewards", *rows]))
    with pytest.raises(
        DataError, match=r"steps\.csv, row 7: 't' is 'soon': expected a whole number or a time"
    ):
        opened(str(tmp_path / "steps.csv"), ignore_final_observation=True)


def test_flags_as_text_are_read_in_order_and_out_of_order(tmp_path: Path, is_whole: bool) -> None:
    flags = ["yes" if flag else "no" for flag in steps()["terminateds"]]
    assert opened(write(tmp_path, is_whole, terminateds=flags)).terminated.tolist() == [True, True]


class TestNullNextObservations:
    def test_at_the_ends_are_zeros_where_that_is_asked_for(self, tmp_path: Path, is_whole: bool) -> None:
        path = write(tmp_path, is_whole, new_obs=with_null(steps()["new_obs"], 11, 20))
        block = opened(path, ignore_final_observation=True)
        assert sorted(block.length.tolist()) == [9, 12]
        last = block.obs_start + block.length
        assert not block.columns["obs"][last].any()
        now = block.columns["obs"][block.obs_row]
        assert sorted(map(tuple, now.tolist())) == sorted(map(tuple, steps()["obs"]))

    def test_are_refused_by_the_name_of_the_option(self, tmp_path: Path, is_whole: bool) -> None:
        path = write(tmp_path, is_whole, new_obs=with_null(steps()["new_obs"], 11, 20))
        with pytest.raises(
            DataError,
            match=r"row \d+ \(episode .*'new_obs' is null where its episode ends: fill it; or leave.*Drop",
        ):
            opened(path)

    def test_at_the_end_of_an_episode_that_was_cut_off_leave_its_last_step_out(
        self, tmp_path: Path, is_whole: bool
    ) -> None:
        """Even where no flag says that it ended, as in what SQL's LEAD makes."""
        known = steps()
        flags = [row == 11 for row in range(21)]
        path = write(tmp_path, is_whole, new_obs=with_null(known["new_obs"], 11, 20), terminateds=flags)
        dataset = open_data(
            Reading((path,), prepare=PrepareSpec(cut_off_steps="Drop"), options=ReadOptions())
        )
        block = kit.read_block(dataset)
        lengths = dict(zip(block.eps_id.tolist(), block.length.tolist(), strict=True))
        assert lengths == {"e0": 12, "e1": 8}
        one = block.eps_id.tolist().index("e1")
        begin = block.obs_start[one]
        assert block.columns["obs"][begin : begin + 9].tolist() == known["obs"][12:]
        assert "1 last step was left out" in "".join(dataset.notes)

    def test_elsewhere_are_refused(self, tmp_path: Path, is_whole: bool) -> None:
        path = write(tmp_path, is_whole, new_obs=with_null(steps()["new_obs"], 4))
        with pytest.raises(
            DataError, match=rf"row {4 + (not is_whole)} .*'new_obs' is null in a row that does not end its"
        ):
            opened(path, ignore_final_observation=True)


class TestIds:
    @pytest.mark.parametrize("kind", ["extension", "bytes"])
    def test_of_uuids_are_their_digits(self, tmp_path: Path, is_whole: bool, kind: str) -> None:
        ids: pa.Array = pa.array([IDS[one == "e1"].bytes for one in steps()["eps_id"]], pa.binary(16))
        if kind == "extension":
            ids = pa.ExtensionArray.from_storage(pa.uuid(), ids)
        block = opened(write(tmp_path, is_whole, eps_id=ids))
        assert sorted(block.eps_id.tolist()) == sorted(one.hex for one in IDS)
        assert dict(zip(block.eps_id, block.length, strict=True)) == {IDS[0].hex: 12, IDS[1].hex: 9}

    def test_of_other_bytes_are_refused(self, tmp_path: Path, is_whole: bool) -> None:
        ids = pa.array([b"a"] * 21, pa.binary())
        with pytest.raises(DataError, match="'eps_id' is a column of binary: expected text or whole numbers"):
            opened(write(tmp_path, is_whole, eps_id=ids))


def test_rewards_in_lists_of_one_number_are_numbers(tmp_path: Path, is_whole: bool) -> None:
    plain = opened(write(tmp_path, is_whole))
    packed = opened(write(tmp_path, is_whole, rewards=[[reward] for reward in steps()["rewards"]]))
    assert packed.columns["rewards"].tolist() == plain.columns["rewards"].tolist()
