"""Rows whose episodes stand together: read and written once, as they are stored; others are brought together."""

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
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import Interrupted
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.formats.format import ReadOptions
from hindcast.formats.tables import text_files
from hindcast.formats.tables.csv_table import Csv
from hindcast.formats.tables.json_table import Json
from hindcast.storage.location import resolve
from support import episode_hashes

BLOCK = kit.make_block([4, 7, 3, 9, 1, 6, 2, 8] * 4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition for every two parts or so."""
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 11)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The files of the parts that are read, each time, in whatever process."""
    notes = tmp_path / "reads.txt"
    notes.touch()

    def noted(path: str, nbytes: int, options: ReadOptions, stored: Callable[[], Any]) -> Part:
        def noting() -> Any:
            with notes.open("a") as file:
                file.write(f"{path}\n")
            return stored()

        return Part(path, nbytes, options, noting)

    monkeypatch.setattr(opening, "Part", noted)
    return lambda: notes.read_text().split()


def rows(tmp_path: Path, has_t: bool = True) -> pa.Table:
    table = kit.table_of(BLOCK, tmp_path / "table")
    return table if has_t else table.drop_columns(["t"])


def dealt_in_order(cache: Path) -> bool:
    (place,) = cache.glob(f"prepared/*/{FOLDER}/partitioning.json")
    return place.read_bytes() == b'{"inOrder":true}'


@pytest.mark.parametrize("has_t", [True, False])
@pytest.mark.parametrize("files", [1, 9])
def test_they_are_read_once_and_keep_their_order(tmp_path, reads, files, has_t):
    path = kit.write_files(tmp_path / "rows", rows(tmp_path, has_t), files)
    found = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert found.eps_id.tolist() == BLOCK.eps_id.tolist()
    assert episode_hashes(found) == episode_hashes(BLOCK)
    assert dealt_in_order(tmp_path / "cache")
    assert sorted(reads()) == sorted(map(str, Path(path).iterdir()))


@pytest.mark.parametrize("has_t", [True, False])
@pytest.mark.parametrize("piece", [16 << 20, 1 << 9])
@pytest.mark.parametrize("form", [Csv, Json])
def test_text_is_parsed_once(tmp_path, monkeypatch, form, piece, has_t):
    """However many pieces a file has: the first one says the types of all, and is not parsed again for that."""
    monkeypatch.setattr(text_files, "CHUNK_BYTES", piece)
    parsed: list[int] = []
    parse = form.parse

    def counted(self: Any, data: bytes, *rest: Any) -> pa.Table:
        parsed.append(len(data))
        return parse(self, data, *rest)

    monkeypatch.setattr(form, "parse", counted)
    path = write_text(tmp_path / "rows", rows(tmp_path, has_t), form.name.lower())
    found = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert found.eps_id.tolist() == BLOCK.eps_id.tolist()
    assert found.length.tolist() == BLOCK.length.tolist()
    assert dealt_in_order(tmp_path / "cache")
    assert sum(parsed) == sum(file.stat().st_size for file in Path(path).iterdir())
    assert (len(parsed) > 3) == (piece < 1 << 20)


def write_text(folder: Path, table: pa.Table, ending: str) -> str:
    """The rows, in their order, over three files."""
    frame = table.to_pandas()
    if ending == "csv":
        obs = {f"{name}[{i}]": frame[name].str[i] for name in ("obs", "new_obs") for i in range(3)}
        frame = frame.drop(columns=["obs", "new_obs"]).assign(**obs)
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
        own = frame.iloc[part]
        text = own.to_csv(index=False) if ending == "csv" else own.to_json(orient="records", lines=True)
        (folder / f"{i}.{ending}").write_text(text)
    return str(folder)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("has_ids", [True, False])
def test_tasks_read_parts_twice_only_where_two_of_them_meet(tmp_path, monkeypatch, reads, has_ids):
    import ray

    monkeypatch.setattr("hindcast.formats.tables.parquet.PIECE_BYTES", 1)
    table = rows(tmp_path) if has_ids else rows(tmp_path).drop_columns(["eps_id", "t"])
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=2)
    path, parts = tmp_path / "rows.parquet", len(table) // 2
    here = open_data(path, cache=tmp_path / "here")
    assert len(reads()) == parts
    monkeypatch.setattr(preparer, "_HERE_BYTES", 0)
    there = open_data(path, cache=tmp_path / "there")
    assert (there.digest, there.notes) == (here.digest, here.notes)
    tasks = int(ray.cluster_resources()["CPU"])
    looked_at = 1  # by this process: whether rows have ids
    assert len(reads()) - parts <= parts + looked_at + 6 * (tasks - 1)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_tasks_that_end_while_they_are_cancelled_do_no_harm(tmp_path, monkeypatch):
    """An interruption at a moment that differs each time; what is left is made afterwards."""
    monkeypatch.setattr("hindcast.formats.tables.parquet.PIECE_BYTES", 1)
    pq.write_table(rows(tmp_path), tmp_path / "rows.parquet", row_group_size=2)
    whole = open_data(tmp_path / "rows.parquet", cache=tmp_path / "here").digest
    monkeypatch.setattr(preparer, "_HERE_BYTES", 0)
    monkeypatch.setattr("hindcast.datasets.prepare.ray_data._LOOK_S", 0.002)
    for most in range(12):
        looks = itertools.count()

        def check(looks=looks, most=most):
            if next(looks) == 4 * most:
                raise Interrupted("asked to stop")

        cache = tmp_path / f"cache{most}"
        with contextlib.suppress(Interrupted):
            open_data(tmp_path / "rows.parquet", cache=cache, hooks=Hooks(check=check))
        assert open_data(tmp_path / "rows.parquet", cache=cache).digest == whole


def test_an_episode_longer_than_many_partitions(tmp_path):
    long = kit.make_block([3, 900, 5])
    path = kit.write_files(tmp_path / "rows", kit.table_of(long, tmp_path / "table"), 9)
    found = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert episode_hashes(found) == episode_hashes(long)
    assert dealt_in_order(tmp_path / "cache")


def test_rows_of_an_episode_may_be_in_disorder_among_themselves(tmp_path):
    table = rows(tmp_path)
    ids = np.repeat(np.arange(len(BLOCK.length)), BLOCK.length)
    noise = np.random.default_rng(0).uniform(size=len(ids))
    path = kit.write_files(tmp_path / "rows", table.take(np.lexsort((noise, ids))), 9)
    found = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert episode_hashes(found) == episode_hashes(BLOCK)
    assert dealt_in_order(tmp_path / "cache")


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
def test_rows_that_lie_apart_are_brought_together(tmp_path, where):
    table = rows(tmp_path)
    path = kit.write_files(tmp_path / "rows", table.take(out_of_order(len(table), where)), 9)
    dataset = open_data(path, cache=tmp_path / "cache")
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(BLOCK)
    assert not dealt_in_order(tmp_path / "cache")
    files = set((tmp_path / "cache").glob("prepared/*/*.parquet"))
    assert {Path(part.path) for unit in dataset.units for part in unit.parts} == files, "nothing is left over"


def test_where_the_first_part_shows_that_rows_lie_apart_no_order_is_tried(tmp_path, reads):
    path = kit.write_files(tmp_path / "rows", kit.scrambled(rows(tmp_path)), 9)
    open_data(path, cache=tmp_path / "cache")
    assert len(reads()) == 9


class _Stopped(Exception):
    pass


def _stop_after(parts: int) -> Hooks:
    left = iter(range(parts))

    def check() -> None:
        if next(left, None) is None:
            raise _Stopped

    return Hooks(check=check)


@pytest.mark.parametrize("where", [None, "everywhere", "in the last file"])
def test_interrupted_anywhere_it_goes_on(tmp_path, where):
    table = rows(tmp_path)
    in_turn = table if where is None else table.take(out_of_order(len(table), where))
    path = kit.write_files(tmp_path / "rows", in_turn, 9)
    stops = 0
    for parts in range(1, 100):
        try:
            dataset = open_data(path, cache=tmp_path / "cache", hooks=_stop_after(parts))
            break
        except _Stopped:
            stops += 1
    assert stops > 1
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(BLOCK)


def test_what_an_earlier_version_began_goes_on_by_episode(tmp_path, monkeypatch):
    """It brought all rows together, and wrote nothing of how it dealt with them."""
    path = kit.write_files(tmp_path / "rows", rows(tmp_path), 9)
    with monkeypatch.context() as earlier:
        earlier.setattr(preparer, "_begins_in_order", lambda *_: False)
        with pytest.raises(_Stopped):
            open_data(path, cache=tmp_path / "cache", hooks=_stop_after(14))
    (folder,) = (tmp_path / "cache" / "prepared").iterdir()
    assert list(resolve(folder).child(FOLDER, "commits").files())
    found = kit.read_block(open_data(Reading((path,)), cache=tmp_path / "cache"))
    assert episode_hashes(found) == episode_hashes(BLOCK)
    assert not (folder / FOLDER / "partitioning.json").exists()


def test_preparation_begun_under_the_old_file_name_resumes_in_stored_order(tmp_path, reads):
    path = kit.write_files(tmp_path / "rows", rows(tmp_path), 9)
    with pytest.raises(_Stopped):
        open_data(path, cache=tmp_path / "cache", hooks=_stop_after(5))
    (file,) = tmp_path.glob(f"cache/prepared/*/{FOLDER}/partitioning.json")
    assert list(file.parent.glob("commits/*"))
    file.rename(file.with_name("dealing.json"))
    first_reads = len(reads())
    block = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert block.eps_id.tolist() == BLOCK.eps_id.tolist()
    assert not file.exists()
    assert len(reads()) - first_reads < 9
