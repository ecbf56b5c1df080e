"""Damaged tables: reading raises an error that names the file, or loses no rows."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_reading import find_format, read_table

from hindcast.errors import DataError, UserError
from hindcast.formats.registry import FORMATS

NUM_ROWS = 60
COLUMNS = {
    "eps_id": [f"e{i // 20}" for i in range(NUM_ROWS)],
    "t": [i % 20 for i in range(NUM_ROWS)],
    "obs": np.random.default_rng(0).random((NUM_ROWS, 3)).tolist(),
    "actions": [i % 3 for i in range(NUM_ROWS)],
    "rewards": [i / 2 for i in range(NUM_ROWS)],
    "terminateds": [i % 20 == 19 for i in range(NUM_ROWS)],
}


def _make_csv() -> bytes:
    head = "eps_id,t,obs[0],obs[1],obs[2],actions,rewards,terminateds\n"
    flat = ["eps_id", "t", "obs", "actions", "rewards", "terminateds"]
    rows = zip(*(COLUMNS[name] for name in flat), strict=True)
    text = [f'"{e}",{t},{o[0]},{o[1]},{o[2]},{a},{r},{str(d).lower()}' for e, t, o, a, r, d in rows]
    return (head + "\n".join(text) + "\n").encode()


def _make_json() -> bytes:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _make_batches() -> bytes:
    parts = [{name: column[i : i + 20] for name, column in COLUMNS.items()} for i in range(0, NUM_ROWS, 20)]
    return "".join(json.dumps({"type": "SampleBatch", **part}) + "\n" for part in parts).encode()


def _make_parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(COLUMNS), sink, row_group_size=25, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


FORMAT_NAMES = {
    "a.parquet": "Parquet",
    "batches.json": "SampleBatch",
    "a.csv": "CSV",
    "a.csv.gz": "CSV",
}
"""File -> name of its format; other files are JSON."""
FILES = {
    "a.parquet": _make_parquet(),
    "a.csv": _make_csv(),
    "a.json": _make_json(),
    "array.json": json.dumps([json.loads(line) for line in _make_json().splitlines()]).encode(),
    "batches.json": _make_batches(),
    "a.csv.gz": gzip.compress(_make_csv()),
    "a.json.gz": gzip.compress(_make_json()),
}


@pytest.mark.parametrize("name", FILES)
def test_intact_file_is_recognised_and_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    assert find_format(tmp_path / name).name == FORMAT_NAMES.get(name, "JSON")
    rows = read_table(tmp_path / name)
    assert rows.columns["obs"].tolist() == COLUMNS["obs"]
    assert rows.row.tolist() == list(range(NUM_ROWS))


@pytest.mark.parametrize("name", FILES)
def test_truncated_file_raises_or_ends_with_complete_row(tmp_path: Path, name: str) -> None:
    data, path = FILES[name], tmp_path / name
    rng = random.Random(0)
    for size in [0, 1, 2, 5, len(data) - 1, len(data) - 2, *(rng.randrange(len(data)) for _ in range(40))]:
        path.write_bytes(data[:size])
        try:
            rows = read_table(path, format=FORMAT_NAMES.get(name, "JSON"))
        except UserError as error:
            assert name in str(error)
            continue
        text = data[:size]
        assert not name.endswith((".parquet", ".gz"))
        if name == "batches.json":
            assert len(rows) == 20 * len(text.splitlines())
        else:  # the end of the last number may be missing, which cannot be detected
            assert len(rows) == len(text.splitlines()) - (name == "a.csv")


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_raises_or_changes_only_values(tmp_path: Path, name: str) -> None:
    data, path = FILES[name], tmp_path / name
    rng = random.Random(1)
    for _ in range(60):
        damaged_data = bytearray(data)
        for _ in range(rng.choice([1, 1, 4])):
            damaged_data[rng.randrange(len(damaged_data))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged_data)
        try:
            rows = read_table(path, format=FORMAT_NAMES.get(name, "JSON"))
        except UserError as error:
            assert name in str(error)
            continue
        if name != "batches.json":
            records = [line for line in bytes(damaged_data).split(b"\n") if line.strip(b"\r")]
            assert (
                name.endswith((".parquet", ".gz"))
                or name == "array.json"
                or (len(rows) == len(records) - (name == "a.csv"))
            )


@pytest.mark.parametrize("format", ["Parquet", "CSV", "JSON", "SampleBatch"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\0" * 100,
        b"PAR1",
        b"PAR1PAR1",
        b"\x1f\x8b",
        b"\x1f\x8b\x08\x00" + b"\0" * 20,
        b"\xff\xfe\xfd" * 9,
        b"{}\n",
        b"[{}]",
        b"[[]]",
        b'{"type": "SampleBatch"}\n',
        b"null\n",
        b'"',
        b"," * 50 + b"\n",
        b"a,b\n\xff\xff,1\n",
    ],
)
def test_file_of_other_content_raises(tmp_path: Path, format: str, data: bytes) -> None:
    path = tmp_path / "some.file"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"some\.file"):
        read_table(path, format=format)


def test_parquet_without_rows_raises(tmp_path: Path) -> None:
    pq.write_table(pa.table({name: column[:0] for name, column in COLUMNS.items()}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet holds no rows"):
        read_table(tmp_path / "a.parquet")


def test_registry_has_every_format_by_name() -> None:
    assert {"Parquet", "JSON", "CSV", "SampleBatch"} <= FORMATS.keys()
