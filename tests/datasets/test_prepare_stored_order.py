"""Prepare rows in stored order, which are read and written once, and scattered rows, which are grouped by episode."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from curate_kit import make_interrupting_hooks
from numpy.typing import NDArray

from hindcast.datasets.hooks import Hooks
from hindcast.datasets.prepare import opening, preparer
from hindcast.datasets.prepare.job import Part
from hindcast.datasets.prepare.opening import open_data
from hindcast.errors import Interrupted
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.formats.tables import text_files
from hindcast.formats.tables.csv_table import Csv
from hindcast.formats.tables.json_table import Json
from support import episode_hashes

BLOCK = kit.make_block([4, 7, 3, 9, 1, 6, 2, 8] * 4)


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit partitions to about two parts."""
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 11)


@pytest.fixture
def list_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return a function that lists the files of all parts that any process has read so far."""
    log = tmp_path / "reads.txt"
    log.touch()

    def make_noting_part(path: str, *arguments: Any) -> Part:
        *others, read_stored = arguments

        def read_and_note() -> Any:
            with log.open("a") as file:
                file.write(f"{path}\n")
            return read_stored()

        return Part(path, *others, read_and_note)

    monkeypatch.setattr(opening, "Part", make_noting_part)
    return lambda: log.read_text().split()


def make_rows(tmp_path: Path, has_t: bool = True) -> pa.Table:
    """Make a table of the timesteps of `BLOCK`."""
    table = kit.make_table(BLOCK, tmp_path / "table")
    return table if has_t else table.drop_columns(["t"])


def is_prepared_in_order(cache: Path) -> bool:
    """Return True if the rows were prepared in stored order, without grouping."""
    (order_file,) = cache.glob(f"prepared/*/{FOLDER}/partitioning.json")
    return order_file.read_bytes() == b'{"inOrder":true}'


@pytest.mark.parametrize("has_t", [True, False])
@pytest.mark.parametrize("num_files", [1, 9])
def test_rows_in_order_are_read_once_and_keep_their_order(tmp_path, list_reads, num_files, has_t):
    path = kit.write_files(tmp_path / "rows", make_rows(tmp_path, has_t), num_files)
    block = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert block.eps_id.tolist() == BLOCK.eps_id.tolist()
    assert episode_hashes(block) == episode_hashes(BLOCK)
    assert is_prepared_in_order(tmp_path / "cache")
    assert sorted(list_reads()) == sorted(map(str, Path(path).iterdir()))


@pytest.mark.parametrize("has_t", [True, False])
@pytest.mark.parametrize("chunk_bytes", [16 << 20, 1 << 9])
@pytest.mark.parametrize("text_format", [Csv, Json])
def test_text_is_parsed_once(tmp_path, monkeypatch, text_format, chunk_bytes, has_t):
    """The first chunk determines the types of all chunks, but is not parsed twice."""
    monkeypatch.setattr(text_files, "CHUNK_BYTES", chunk_bytes)
    parsed_bytes: list[int] = []
    parse = text_format.parse

    def parse_and_count(self: Any, data: bytes, *args: Any) -> pa.Table:
        parsed_bytes.append(len(data))
        return parse(self, data, *args)

    monkeypatch.setattr(text_format, "parse", parse_and_count)
    path = write_text(tmp_path / "rows", make_rows(tmp_path, has_t), text_format.name.lower())
    block = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert block.eps_id.tolist() == BLOCK.eps_id.tolist()
    assert block.length.tolist() == BLOCK.length.tolist()
    assert is_prepared_in_order(tmp_path / "cache")
    assert sum(parsed_bytes) == sum(file.stat().st_size for file in Path(path).iterdir())
    assert (len(parsed_bytes) > 3) == (chunk_bytes < 1 << 20)


def write_text(folder: Path, table: pa.Table, suffix: str) -> str:
    """Write the rows, in order, to three text files."""
    frame = table.to_pandas()
    if suffix == "csv":
        obs = {f"{name}[{i}]": frame[name].str[i] for name in ("obs", "new_obs") for i in range(3)}
        frame = frame.drop(columns=["obs", "new_obs"]).assign(**obs)
    folder.mkdir()
    for i, row_indices in enumerate(np.array_split(np.arange(len(frame)), 3)):
        part, file = frame.iloc[row_indices], folder / f"{i}.{suffix}"
        part.to_csv(file, index=False) if suffix == "csv" else part.to_json(
            file, orient="records", lines=True
        )
    return str(folder)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("has_ids", [True, False])
def test_tasks_read_parts_twice_only_where_two_tasks_meet(tmp_path, monkeypatch, list_reads, has_ids):
    import ray

    monkeypatch.setattr("hindcast.formats.tables.parquet.PIECE_BYTES", 1)
    table = make_rows(tmp_path) if has_ids else make_rows(tmp_path).drop_columns(["eps_id", "t"])
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=2)
    path, num_parts = tmp_path / "rows.parquet", len(table) // 2
    local_dataset = open_data(path, cache=tmp_path / "here")
    assert len(list_reads()) == num_parts
    monkeypatch.setattr(preparer, "_MAX_LOCAL_BYTES", 0)
    dataset_from_ray = open_data(path, cache=tmp_path / "there")
    assert (dataset_from_ray.digest, dataset_from_ray.notes) == (local_dataset.digest, local_dataset.notes)
    num_tasks = int(ray.cluster_resources()["CPU"])
    first_reads = 1  # this process reads the first part, to see whether the rows have ids
    # Two adjacent tasks both read the parts of an episode between them, at most five, and the part before it.
    assert len(list_reads()) - num_parts <= num_parts + first_reads + 6 * (num_tasks - 1)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_tasks_ending_while_cancelled_do_no_harm(tmp_path, monkeypatch):
    """Interrupt at a different moment each time, then resume."""
    monkeypatch.setattr("hindcast.formats.tables.parquet.PIECE_BYTES", 1)
    pq.write_table(make_rows(tmp_path), tmp_path / "rows.parquet", row_group_size=2)
    expected_digest = open_data(tmp_path / "rows.parquet", cache=tmp_path / "here").digest
    monkeypatch.setattr(preparer, "_MAX_LOCAL_BYTES", 0)
    monkeypatch.setattr("hindcast.datasets.prepare.ray_tasks._PROGRESS_INTERVAL_SECONDS", 0.002)
    for interruption in range(12):
        checks = itertools.count()

        def check(checks=checks, interruption=interruption):
            if next(checks) == 4 * interruption:
                raise Interrupted("asked to stop")

        cache = tmp_path / f"cache{interruption}"
        with contextlib.suppress(Interrupted):
            open_data(tmp_path / "rows.parquet", cache=cache, hooks=Hooks(check=check))
        assert open_data(tmp_path / "rows.parquet", cache=cache).digest == expected_digest


def test_episode_longer_than_many_partitions_is_prepared(tmp_path):
    long_block = kit.make_block([3, 900, 5])
    path = kit.write_files(tmp_path / "rows", kit.make_table(long_block, tmp_path / "table"), 9)
    block = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert episode_hashes(block) == episode_hashes(long_block)
    assert is_prepared_in_order(tmp_path / "cache")


def test_rows_within_an_episode_may_be_out_of_order(tmp_path):
    table = make_rows(tmp_path)
    ids = np.repeat(np.arange(len(BLOCK.length)), BLOCK.length)
    noise = np.random.default_rng(0).uniform(size=len(ids))
    path = kit.write_files(tmp_path / "rows", table.take(np.lexsort((noise, ids))), 9)
    block = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert episode_hashes(block) == episode_hashes(BLOCK)
    assert is_prepared_in_order(tmp_path / "cache")


def make_row_order(count: int, disorder: str) -> NDArray[np.int64]:
    """Make a permutation of rows in which some or all episodes are scattered."""
    order = np.arange(count)
    if disorder == "everywhere":
        np.random.default_rng(0).shuffle(order)
    elif disorder == "in the first file":
        order[[0, 5]] = order[[5, 0]]
    elif disorder == "in the last file":
        order[[-1, -9]] = order[[-9, -1]]
    else:
        order[[1, -1]] = order[[-1, 1]]
    return order


@pytest.mark.parametrize("disorder", ["everywhere", "in the first file", "in the last file", "at both ends"])
def test_scattered_rows_are_grouped_by_episode(tmp_path, disorder):
    table = make_rows(tmp_path)
    path = kit.write_files(tmp_path / "rows", table.take(make_row_order(len(table), disorder)), 9)
    dataset = open_data(path, cache=tmp_path / "cache")
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(BLOCK)
    assert not is_prepared_in_order(tmp_path / "cache")
    files = set((tmp_path / "cache").glob("prepared/*/*.parquet"))
    assert {Path(part.path) for unit in dataset.units for part in unit.parts} == files, "nothing is left over"


def test_scattered_rows_in_the_first_part_skip_stored_order(tmp_path, list_reads):
    path = kit.write_files(tmp_path / "rows", kit.scramble_rows(make_rows(tmp_path)), 9)
    open_data(path, cache=tmp_path / "cache")
    assert len(list_reads()) == 9


@pytest.mark.parametrize("disorder", [None, "everywhere", "in the last file"])
def test_preparation_interrupted_anywhere_resumes(tmp_path, disorder):
    table = make_rows(tmp_path)
    reordered_table = table if disorder is None else table.take(make_row_order(len(table), disorder))
    path = kit.write_files(tmp_path / "rows", reordered_table, 9)
    num_stops = 0
    for num_checks in range(1, 100):
        try:
            dataset = open_data(path, cache=tmp_path / "cache", hooks=make_interrupting_hooks(num_checks))
            break
        except Interrupted:
            num_stops += 1
    assert num_stops > 1
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(BLOCK)
