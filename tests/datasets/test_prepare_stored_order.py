"""Preparing rows in stored order, which are read and written once, and scattered rows, which are grouped."""

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
from numpy.typing import NDArray

from hindcast.datasets.hooks import Hooks
from hindcast.datasets.prepare import opening, preparer
from hindcast.datasets.prepare.job import Part
from hindcast.datasets.prepare.opening import open_data
from hindcast.errors import Interrupted
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.formats.format import ReadOptions
from hindcast.formats.tables import text_files
from hindcast.formats.tables.csv_table import Csv
from hindcast.formats.tables.json_table import Json
from support import episode_hashes

BLOCK = kit.make_block([4, 7, 3, 9, 1, 6, 2, 8] * 4)


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a partition of about two parts."""
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 11)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return a function that lists the file of every part read, in any process."""
    notes = tmp_path / "reads.txt"
    notes.touch()

    def make_noting_part(path: str, nbytes: int, options: ReadOptions, stored: Callable[[], Any]) -> Part:
        def read_and_note() -> Any:
            with notes.open("a") as file:
                file.write(f"{path}\n")
            return stored()

        return Part(path, nbytes, options, read_and_note)

    monkeypatch.setattr(opening, "Part", make_noting_part)
    return lambda: notes.read_text().split()


def rows(tmp_path: Path, has_t: bool = True) -> pa.Table:
    table = kit.table_of(BLOCK, tmp_path / "table")
    return table if has_t else table.drop_columns(["t"])


def was_kept_in_order(cache: Path) -> bool:
    (place,) = cache.glob(f"prepared/*/{FOLDER}/partitioning.json")
    return place.read_bytes() == b'{"inOrder":true}'


@pytest.mark.parametrize("has_t", [True, False])
@pytest.mark.parametrize("files", [1, 9])
def test_rows_in_order_are_read_once_and_keep_their_order(tmp_path, reads, files, has_t):
    path = kit.write_files(tmp_path / "rows", rows(tmp_path, has_t), files)
    block = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert block.eps_id.tolist() == BLOCK.eps_id.tolist()
    assert episode_hashes(block) == episode_hashes(BLOCK)
    assert was_kept_in_order(tmp_path / "cache")
    assert sorted(reads()) == sorted(map(str, Path(path).iterdir()))


@pytest.mark.parametrize("has_t", [True, False])
@pytest.mark.parametrize("piece", [16 << 20, 1 << 9])
@pytest.mark.parametrize("form", [Csv, Json])
def test_text_is_parsed_once(tmp_path, monkeypatch, form, piece, has_t):
    """The first piece determines the types of all pieces, and is not parsed again for that."""
    monkeypatch.setattr(text_files, "CHUNK_BYTES", piece)
    parsed_bytes: list[int] = []
    parse = form.parse

    def parse_and_count(self: Any, data: bytes, *rest: Any) -> pa.Table:
        parsed_bytes.append(len(data))
        return parse(self, data, *rest)

    monkeypatch.setattr(form, "parse", parse_and_count)
    path = write_text(tmp_path / "rows", rows(tmp_path, has_t), form.name.lower())
    block = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert block.eps_id.tolist() == BLOCK.eps_id.tolist()
    assert block.length.tolist() == BLOCK.length.tolist()
    assert was_kept_in_order(tmp_path / "cache")
    assert sum(parsed_bytes) == sum(file.stat().st_size for file in Path(path).iterdir())
    assert (len(parsed_bytes) > 3) == (piece < 1 << 20)


def write_text(folder: Path, table: pa.Table, ending: str) -> str:
    """Write the rows, in order, to three text files."""
    frame = table.to_pandas()
    if ending == "csv":
        obs = {f"{name}[{i}]": frame[name].str[i] for name in ("obs", "new_obs") for i in range(3)}
        frame = frame.drop(columns=["obs", "new_obs"]).assign(**obs)
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
        frame_part = frame.iloc[part]
        text = (
            frame_part.to_csv(index=False)
            if ending == "csv"
            else frame_part.to_json(orient="records", lines=True)
        )
        (folder / f"{i}.{ending}").write_text(text)
    return str(folder)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("has_ids", [True, False])
def test_tasks_read_parts_twice_only_where_two_tasks_meet(tmp_path, monkeypatch, reads, has_ids):
    import ray

    monkeypatch.setattr("hindcast.formats.tables.parquet.PIECE_BYTES", 1)
    table = rows(tmp_path) if has_ids else rows(tmp_path).drop_columns(["eps_id", "t"])
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=2)
    path, parts = tmp_path / "rows.parquet", len(table) // 2
    here = open_data(path, cache=tmp_path / "here")
    assert len(reads()) == parts
    monkeypatch.setattr(preparer, "_MAX_LOCAL_BYTES", 0)
    dataset_from_ray = open_data(path, cache=tmp_path / "there")
    assert (dataset_from_ray.digest, dataset_from_ray.notes) == (here.digest, here.notes)
    tasks = int(ray.cluster_resources()["CPU"])
    looked_at = 1  # by this process: whether rows have ids
    assert len(reads()) - parts <= parts + looked_at + 6 * (tasks - 1)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_tasks_ending_while_cancelled_do_no_harm(tmp_path, monkeypatch):
    """Interrupt at a different moment each time, then resume."""
    monkeypatch.setattr("hindcast.formats.tables.parquet.PIECE_BYTES", 1)
    pq.write_table(rows(tmp_path), tmp_path / "rows.parquet", row_group_size=2)
    expected_digest = open_data(tmp_path / "rows.parquet", cache=tmp_path / "here").digest
    monkeypatch.setattr(preparer, "_MAX_LOCAL_BYTES", 0)
    monkeypatch.setattr("hindcast.datasets.prepare.ray_data._PROGRESS_INTERVAL_SECONDS", 0.002)
    for max_looks in range(12):
        checks = itertools.count()

        def check(checks=checks, max_looks=max_looks):
            if next(checks) == 4 * max_looks:
                raise Interrupted("asked to stop")

        cache = tmp_path / f"cache{max_looks}"
        with contextlib.suppress(Interrupted):
            open_data(tmp_path / "rows.parquet", cache=cache, hooks=Hooks(check=check))
        assert open_data(tmp_path / "rows.parquet", cache=cache).digest == expected_digest


def test_episode_longer_than_many_partitions_is_prepared(tmp_path):
    long = kit.make_block([3, 900, 5])
    path = kit.write_files(tmp_path / "rows", kit.table_of(long, tmp_path / "table"), 9)
    block = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert episode_hashes(block) == episode_hashes(long)
    assert was_kept_in_order(tmp_path / "cache")


def test_rows_within_an_episode_may_be_out_of_order(tmp_path):
    table = rows(tmp_path)
    ids = np.repeat(np.arange(len(BLOCK.length)), BLOCK.length)
    noise = np.random.default_rng(0).uniform(size=len(ids))
    path = kit.write_files(tmp_path / "rows", table.take(np.lexsort((noise, ids))), 9)
    block = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert episode_hashes(block) == episode_hashes(BLOCK)
    assert was_kept_in_order(tmp_path / "cache")


def out_of_order(count: int, where: str) -> NDArray[np.int64]:
    order = np.arange(count)
    if where == "everywhere":
        np.random.default_rng(0).shuffle(order)
    elif where == "in the first file":
        order[[0, 5]] = order[[5, 0]]
    elif where == "in the last file":
        order[[-1, -9]] = order[[-9, -1]]
    else:
        order[[1, -1]] = order[[-1, 1]]
    return order


@pytest.mark.parametrize("where", ["everywhere", "in the first file", "in the last file", "at both ends"])
def test_scattered_rows_are_grouped_by_episode(tmp_path, where):
    table = rows(tmp_path)
    path = kit.write_files(tmp_path / "rows", table.take(out_of_order(len(table), where)), 9)
    dataset = open_data(path, cache=tmp_path / "cache")
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(BLOCK)
    assert not was_kept_in_order(tmp_path / "cache")
    files = set((tmp_path / "cache").glob("prepared/*/*.parquet"))
    assert {Path(part.path) for unit in dataset.units for part in unit.parts} == files, "nothing is left over"


def test_scattered_rows_in_the_first_part_skip_stored_order(tmp_path, reads):
    path = kit.write_files(tmp_path / "rows", kit.scramble_rows(rows(tmp_path)), 9)
    open_data(path, cache=tmp_path / "cache")
    assert len(reads()) == 9


class _StopError(Exception):
    pass


def _stop_after(parts: int) -> Hooks:
    remaining_checks = iter(range(parts))

    def check() -> None:
        if next(remaining_checks, None) is None:
            raise _StopError

    return Hooks(check=check)


@pytest.mark.parametrize("where", [None, "everywhere", "in the last file"])
def test_preparation_interrupted_anywhere_resumes(tmp_path, where):
    table = rows(tmp_path)
    in_turn = table if where is None else table.take(out_of_order(len(table), where))
    path = kit.write_files(tmp_path / "rows", in_turn, 9)
    stops = 0
    for parts in range(1, 100):
        try:
            dataset = open_data(path, cache=tmp_path / "cache", hooks=_stop_after(parts))
            break
        except _StopError:
            stops += 1
    assert stops > 1
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(BLOCK)
