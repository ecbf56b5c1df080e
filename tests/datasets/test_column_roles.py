"""What the columns of a table are: judged by all rows, although only the first are read for most of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from hindcast.datasets.inspection.column_roles import read_profile
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from hindcast.formats.format import HEAD_ROWS
from hindcast.formats.tables.csv_table import Csv
from hindcast.formats.tables.parquet import Parquet
from hindcast.run.new_training import make_training


def make_steps(num_rows: int) -> pa.Table:
    """Make a table whose `late` changes in the last row only, and whose `site` never does."""
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "patient": np.arange(num_rows) // 5,
            "pulse": rng.integers(50, 120, num_rows),
            "late": (np.arange(num_rows) == num_rows - 1).astype(int),
            "site": np.full(num_rows, 3.5),
            "dose": rng.integers(0, 2, num_rows),
            "outcome": rng.normal(size=num_rows),
        }
    )


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("num_files", [1, 2])
def test_column_that_changes_after_the_first_rows_is_an_observation(
    tmp_path: Path, suffix: str, num_files: int
) -> None:
    table = make_steps(HEAD_ROWS + 5 if num_files == 1 else 20)
    write = pq.write_table if suffix == "parquet" else pacsv.write_csv
    for number in range(num_files):
        size = len(table) // num_files
        write(table.slice(number * size, size), tmp_path / f"{number}.{suffix}")
    profile = read_profile(Reading((str(tmp_path),)))
    assert profile is not None
    assert profile.schema["obs"] == ["pulse", "late"]
    assert profile.left_out == {"site": "it never changes"}
    assert [column.name for column in profile.columns if column.constant] == ["site"]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_constant_columns_of_several_files_are_judged_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    constants: list[dict[str, Any]] = [
        {"flag": 0, "late": 0, "level": 2**60, "site": 1.5, "extra": 7},
        {"flag": None, "late": None, "level": 2**60 + 1, "site": 1.5},
        {"flag": None, "late": 2, "level": 2**60, "site": 1.5},
    ]
    write = pq.write_table if suffix == "parquet" else pacsv.write_csv
    for number, values in enumerate(constants):
        table = make_steps(20).select(["patient", "pulse", "dose", "outcome"])
        for name, value in values.items():
            table = table.append_column(name, pa.array([value] * 20))
        write(table, tmp_path / f"{number}.{suffix}")
    file_format = {"parquet": Parquet, "csv": Csv}[suffix]
    reads, read = [], file_format.read
    monkeypatch.setattr(file_format, "read", lambda *args: reads.append(args) or read(*args))
    profile = read_profile(Reading((str(tmp_path),)))
    assert profile is not None
    assert profile.schema["obs"] == ["pulse", "late", "level"]
    assert profile.left_out == dict.fromkeys(["flag", "extra", "site"], "it never changes")
    assert len(reads) == 3


def test_whole_numbers_of_a_table_are_normalised(tmp_path: Path) -> None:
    pq.write_table(make_steps(100), tmp_path / "visits.parquet")
    training = make_training(Reading((str(tmp_path / "visits.parquet"),)))
    assert "observationFilter: MeanStd" in training.text
    assert "dtype: int64" not in training.text


def test_first_resource_for_a_csv_with_semicolons_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text("pulse;dose;outcome\n71,5;0;1,5\n")
    with pytest.raises(DataError, match=r"row 0: Expected 1 columns, got .*readOptions\.delimiter"):
        make_training(Reading((str(tmp_path / "visits.csv"),)))


def test_columns_that_are_read_as_numbers_are_observations_and_others_say_why(tmp_path: Path) -> None:
    """Regression: numbers as text (JSON of BigQuery) were left out, and categories that may be ids were a bug."""
    texts = {"weight": "7{}.5", "age": "4{}", "zip": "0{}1", "ward": "w{}"}
    columns: dict[str, Any] = {
        name: [text.format(row % 9) for row in range(20)] for name, text in texts.items()
    }
    columns |= {
        "patient": pa.array([f"p{row // 5}" for row in range(20)]).dictionary_encode(),
        "grade": pa.array([1, 2] * 10).dictionary_encode(),
        "group": pa.array(["a", "b"] * 10).dictionary_encode(),
        "noticed": pa.array(range(20), pa.timestamp("s")),
    }
    pq.write_table(
        pa.table({**make_steps(20).drop_columns(["late", "site"]).to_pydict(), **columns}),
        tmp_path / "a.parquet",
    )
    profile = read_profile(Reading((str(tmp_path),)))
    assert profile is not None
    assert profile.schema["obs"] == ["pulse", "weight", "age", "grade"]
    assert profile.schema["eps_id"] == "patient"
    assert profile.left_out == {
        **dict.fromkeys(["zip", "ward", "group"], "it holds text, not numbers"),
        "noticed": "it holds times; if they order the rows, name it as t under schema",
    }
