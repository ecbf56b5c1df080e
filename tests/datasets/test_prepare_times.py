"""Times of rows: the durations of steps that prepared data have, and columns that are not times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import prepare_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hindcast.api.input import PrepareSpec, TimeSpec
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.tables.roles import _to_order
from layers import examples
from user_errors import raises_user_error

HOURS = np.array([0, 6, 6, 30, 100, 101, 149, 3, 27], dtype=np.float64)
"""Times of the rows of three episodes: of four steps, three and two."""
DURATIONS = np.array([6, 0, 24, 10, 1, 48, 24.5, 24, 24])
"""Hours of the steps; the last step of an episode takes the mean of its other steps."""


def make_table(times: Any, name: str = "when") -> pa.Table:
    rows = {
        "eps_id": ["a"] * 4 + ["b"] * 3 + ["c"] * 2,
        "obs": np.arange(9.0),
        "actions": [0, 1] * 4 + [0],
        "rewards": np.ones(9),
        "terminateds": [False, False, False, True, False, False, True, False, True],
    }
    return pa.table(rows | {name: times})


def read_durations(path: Path, table: pa.Table, schema: dict[str, Any] | None = None, **time: Any) -> Any:
    options = ReadOptions(
        schema=schema or {},
        columns=("obs", "actions", "rewards"),
        time=TimeSpec.model_validate({"column": "when"} | time),
    )
    folder = kit.write_files(path, table)
    dataset = open_data(
        Reading((folder,), options=options, prepare=PrepareSpec()), cache=str(path.parent / "cache")
    )
    return kit.read_block(dataset).columns


@pytest.mark.parametrize("kind", ["numbers", "timestamps", "zoned", "dates", "text", "durations"])
def test_steps_last_from_row_to_row(tmp_path: Path, kind: str) -> None:
    stamps = np.datetime64("2026-01-30T08:00", "us") + (HOURS * 3600e6).astype("timedelta64[us]")
    times, time, expected = {
        "numbers": lambda: (HOURS, {"unit": 24.0}, DURATIONS / 24),
        "timestamps": lambda: (stamps, {"unit": "Day"}, DURATIONS / 24),
        "zoned": lambda: (
            pa.array(stamps).cast(pa.timestamp("ns", "Europe/Berlin")),
            {"unit": "Hour"},
            DURATIONS,
        ),
        "dates": lambda: (stamps.astype("datetime64[D]"), {"unit": "Week"}, None),
        "text": lambda: ([f"{stamp}+02:00" for stamp in stamps], {"unit": "Minute"}, DURATIONS * 60),
        "durations": lambda: ((HOURS * 3600).astype("timedelta64[s]"), {"unit": "Second"}, DURATIONS * 3600),
    }[kind]()
    columns = read_durations(tmp_path / "rows", make_table(times), **time)
    if expected is None:
        days = np.array([0, 0, 1, 1 / 3, 0, 2, 1, 1, 1])
        expected = days / 7
    np.testing.assert_allclose(columns["delta_t"], expected, rtol=1e-12)
    assert "time_of_row" not in columns
    assert columns["obs"].shape == (12,)


def test_observed_time_is_the_last_element_of_observations(tmp_path: Path) -> None:
    table = make_table(HOURS).append_column("pulse", pa.array(np.arange(9) + 60))
    columns = read_durations(tmp_path / "rows", table, {"obs": ["pulse", "obs"]}, observe=True)
    np.testing.assert_allclose(columns["obs"][:5, 2], [0, 6, 0, 24, 10])
    np.testing.assert_allclose(columns["obs"][5:, 2], [0, 1, 48, 24.5, 0, 24, 24])
    np.testing.assert_array_equal(columns["obs"][:4, 0], [60, 61, 62, 63])
    options = ReadOptions(schema={"obs": ["pulse", "obs"]}, time=TimeSpec(column="when", observe=True))
    dataset = open_data(Reading((str(tmp_path / "rows"),), options=options), cache=str(tmp_path / "cache"))
    assert dataset.spec.leaves["obs"].names == ("pulse", "obs", "delta_t")


def test_time_orders_rows_that_name_it_as_t(tmp_path: Path) -> None:
    # Row 1 is left out: it has the time of row 2.
    table = make_table(HOURS + 0.5 - 50).take([3, 6, 0, 8, 7, 4, 2, 5])
    columns = read_durations(tmp_path / "rows", table, {"t": "when"}, unit=1.0)
    np.testing.assert_allclose(columns["delta_t"], [6, 24, 15, 1, 48, 24.5, 24, 24])
    np.testing.assert_array_equal(columns["obs"], [0, 2, 3, 3, 4, 5, 6, 6, 7, 8, 8])
    with pytest.raises(DataError, match=r"row \d .*: the time is before that of the episode's previous row"):
        read_durations(tmp_path / "unordered", make_table([*HOURS[:3], 5.0, *HOURS[4:]]))


def test_observation_after_last_step_ends_it(tmp_path: Path) -> None:
    episode = {
        "obs": [[0.0, 1, 2, 3]],
        "actions": [[0, 1, 0]],
        "rewards": [[1.0, 1, 1]],
        "truncateds": [True],
    }
    for times, last_duration in (([0.0, 2, 3, 10], 7.0), ([0.0, 2, 3], 1.5)):
        table = pa.table(episode | {"when": [times]})
        columns = read_durations(tmp_path / f"{last_duration}", table)
        assert columns["delta_t"].tolist() == [2.0, 1.0, last_duration]


@examples(20)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), spacing=st.integers(1, 9))
def test_equal_spacing_is_one_exactly(tmp_path_factory: Any, lengths: list[int], spacing: int) -> None:
    steps = np.concatenate([np.arange(length) for length in lengths])
    table = pa.table(
        {
            "eps_id": np.repeat(np.arange(len(lengths)), lengths),
            "obs": steps * 1.0,
            "actions": steps % 2,
            "rewards": steps * 1.0,
            "truncateds": np.append(np.diff(steps) < 1, True),
            "when": np.datetime64("1969-12-31T23:59:07", "s") + steps * np.timedelta64(spacing * 7, "D"),
        }
    )
    folder = kit.write_files(tmp_path_factory.mktemp("rows"), table)
    options = ReadOptions(time=TimeSpec(column="when", unit="Week"), ignore_final_observation=True)
    columns = kit.read_block(open_data(Reading((folder,), options=options))).columns
    expected = np.full(len(steps), float(spacing))
    expected[np.repeat(lengths, lengths) == 1] = 1.0
    assert columns["delta_t"].tolist() == expected.tolist()


START_TYPES = {
    "int64": (0, 2**53 - 2, 2**53, 1_790_000_000_000_000_000, -(2**53) - 1, -1_790_000_000_000_000_000),
    "uint64": (0, 2**53 - 2, 1_790_000_000_000_000_000),
    "float64": (0, 2**53, -(2**54)),
    "timestamp[ns]": (0, 1_790_000_000_000_000_000, -1_790_000_000_000_000_000),
    "timestamp[us]": (0, 2**53, -(10**18)),
}


@examples(60)
@given(
    form=st.sampled_from(sorted(START_TYPES)),
    start=st.integers(0, 5),
    steps=st.lists(st.sampled_from([1, 2, 255, 256, 1000]), min_size=1, max_size=6),
    is_ordered=st.booleans(),
)
@example("int64", 3, [1, 255, 1], True)
@example("timestamp[ns]", 1, [1, 255, 1], False)
def test_durations_between_large_times_are_exact(tmp_path_factory, form, start, steps, is_ordered):
    """Regression: nanoseconds since 1970 became float64, in which two times within 256 are one."""
    start = START_TYPES[form][start % len(START_TYPES[form])]
    size = 256 if form == "float64" else 1  # the distance of neighbouring floats
    times = [start + size * sum(steps[:i]) for i in range(len(steps) + 1)]
    table = pa.table(
        {
            "eps_id": ["a"] * len(times),
            "obs": np.arange(len(times)) * 1.0,
            "actions": [0] * len(times),
            "rewards": np.zeros(len(times)),
            "truncateds": [False] * len(steps) + [True],
            # pyarrow converts no integer beyond 2**53 to a float, however exact
            "when": pa.array(
                [float(t) for t in times] if form == "float64" else times, pa.type_for_alias(form)
            ),
        }
    )
    order = np.arange(len(times))
    if not is_ordered:
        order = np.random.default_rng(len(steps)).permutation(order)
    folder = kit.write_files(tmp_path_factory.mktemp("rows"), table.take(order), num_files=2)
    unit = "Second" if form.startswith("timestamp") else 1.0
    options = ReadOptions(
        schema={} if is_ordered else {"t": "when"},
        time=TimeSpec(column="when", unit=unit),
        ignore_final_observation=True,
    )
    columns = kit.read_block(open_data(Reading((folder,), options=options))).columns
    units_per_second = {"timestamp[ns]": 10**9, "timestamp[us]": 10**6}.get(form, 1)
    assert columns["delta_t"][:-1] == pytest.approx(size * np.array(steps) / units_per_second, rel=1e-12)


def test_numbers_in_two_types_order_rows_alike():
    """Files may have integers and floats; the order of each is compared with that of the other."""
    numbers = [-(2**60), -(2**53), -(2**53) + 1, -1, 0, 1, 2**53 - 1, 2**53, 2**53 + 2, 2**60]
    integers = _to_order(np.array(numbers, np.int64))
    assert (np.diff(integers) > 0).all()
    assert _to_order(np.array(numbers, np.float64)).tolist() == integers.tolist()
    fractions = _to_order(np.array([-1.5, -0.5, -0.0, 0.0, 0.5, 1.5]))
    assert np.diff(fractions).min() == 0
    assert (fractions[[0, 1, 4, 5]] < _to_order(np.array([-1, 0, 1, 2]))).all()


@pytest.mark.parametrize(
    ("times", "time", "message"),
    [
        (
            [*range(8), 2**63 - 1],
            {},
            "row 8: 'when' is 9223372036854775807: expected a time between .*subtract",
        ),
        (HOURS, {"column": "whem"}, "it has no column 'whem', which `time` names: did you mean 'when'"),
        (HOURS, {"unit": "Day"}, "'when' holds numbers, but time.unit is Day: set it to the number"),
        (
            HOURS.astype("datetime64[h]").astype("datetime64[s]"),
            {},
            "'when' holds dates or times: set time.unit",
        ),
        ([None, *HOURS[1:]], {}, "row 0: 'when' is null"),
        ([*HOURS[:8], np.inf], {}, "row 8: 'when' is inf: expected a time"),
        ([True] * 9, {}, "'when' is a column of bool: expected numbers, dates or times"),
    ],
)
def test_column_without_times_is_refused(
    tmp_path: Path, times: Any, time: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_durations(tmp_path / "rows", make_table(times), **time)


@pytest.mark.parametrize("partition_bytes", [1, 1 << 20])
@pytest.mark.parametrize("kind", ["null", "negative", "one file"])
def test_durations_are_never_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, partition_bytes: int
) -> None:
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", partition_bytes)
    last_duration = {"null": None, "negative": -1.0, "one file": 2.0}[kind]
    table = make_table([*[1.0] * 8, last_duration], "delta_t")
    folder = tmp_path / "rows"
    folder.mkdir()
    pq.write_table(table.slice(7), folder / "2.parquet")
    pq.write_table(
        make_table(HOURS).slice(0, 7) if kind == "one file" else table.slice(0, 7), folder / "1.parquet"
    )
    message = {
        "null": r"2\.parquet, row 1: 'delta_t' is null; fix it",
        "negative": r"2\.parquet, row 1: 'delta_t' is -1\.0: expected a duration of 0 or more; correct it",
        "one file": "delta_t",
    }[kind]
    with pytest.raises(DataError, match=message):
        open_data(Reading((str(folder),), prepare=PrepareSpec()), cache=str(tmp_path / "cache"))


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame in the format of the path; text formats have times in ISO 8601."""
    if path.suffix == ".parquet":
        frame.to_parquet(path)
        return
    frame = frame.assign(when=[time.isoformat() for time in frame["when"]])
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)


@pytest.mark.parametrize("suffixes", [(".parquet", ".parquet"), (".csv", ".jsonl"), (".jsonl", ".parquet")])
@pytest.mark.parametrize("options", [{}, {"time": TimeSpec(column="when", unit="Hour")}])
@pytest.mark.parametrize("zoned_file", [0, 1])
def test_times_with_and_without_a_zone_are_not_joined(
    tmp_path: Path, zoned_file: int, options: dict[str, Any], suffixes: tuple[str, str]
) -> None:
    """Regression: times in UTC in one file and local times in another ordered the rows of the same episodes."""
    frame = make_table(pd.date_range("2026-01-30T08:00", periods=9, freq="h")).to_pandas()
    frames = [frame[::2], frame[1::2]]
    folder = tmp_path / "data"
    folder.mkdir()
    paths = [folder / f"part{number}{suffix}" for number, suffix in enumerate(suffixes)]

    def read(*files_with_zone: int) -> Any:
        for number, (part, path) in enumerate(zip(frames, paths, strict=True)):
            zone = "UTC" if number in files_with_zone else None
            write_frame(part.assign(when=part["when"].dt.tz_localize(zone)), path)
        read_options = ReadOptions(
            schema={"t": "when"},
            columns=("obs", "actions", "rewards"),
            ignore_final_observation=True,
            **options,
        )
        return kit.read_block(open_data(Reading((str(folder),), options=read_options)))

    with raises_user_error(DataError, "has a time without a zone", path=str(paths[1 - zoned_file]), row=0):
        read(zoned_file)
    for files_with_zone in ((), (0, 1)):
        block = read(*files_with_zone)
        assert block.columns["obs"][block.obs_row].ravel().tolist() == list(range(9))
