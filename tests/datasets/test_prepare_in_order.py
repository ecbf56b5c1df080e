"""Rows whose episodes stand together: read and written once, as they are stored; others are brought together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from hindcast.datasets.prepare import making
from hindcast.datasets.prepare.job import Part
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.watch import Watch
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.storage.location import resolve
from support import episode_hashes

BLOCK = kit.make_block([4, 7, 3, 9, 1, 6, 2, 8] * 4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition for every two parts or so."""
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 11)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of the parts that are read, each time."""
    found: list[str] = []
    read = Part.read

    def counted(part: Part) -> object:
        found.append(part.path)
        return read(part)

    monkeypatch.setattr(Part, "read", counted)
    return found


def rows(tmp_path: Path, has_t: bool = True) -> pa.Table:
    table = kit.table_of(BLOCK, tmp_path / "table")
    return table if has_t else table.drop_columns(["t"])


def dealt_in_order(cache: Path) -> bool:
    (place,) = cache.glob(f"prepared/*/{FOLDER}/dealing.json")
    return place.read_bytes() == b'{"inOrder":true}'


@pytest.mark.parametrize("has_t", [True, False])
@pytest.mark.parametrize("files", [1, 9])
def test_they_are_read_once_and_keep_their_order(tmp_path, reads, files, has_t):
    path = kit.write_files(tmp_path / "rows", rows(tmp_path, has_t), files)
    found = kit.read_block(open_data(path, cache=tmp_path / "cache"))
    assert found.eps_id.tolist() == BLOCK.eps_id.tolist()
    assert episode_hashes(found) == episode_hashes(BLOCK)
    assert dealt_in_order(tmp_path / "cache")
    assert len(reads) == files + 1, "the first part is looked at once more, for whether rows have ids"


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
    assert len(reads) == 9 + 1


class _Stopped(Exception):
    pass


def _stop_after(parts: int) -> Watch:
    left = iter(range(parts))

    def check() -> None:
        if next(left, None) is None:
            raise _Stopped

    return Watch(check=check)


@pytest.mark.parametrize("where", [None, "everywhere", "in the last file"])
def test_interrupted_anywhere_it_goes_on(tmp_path, where):
    table = rows(tmp_path)
    in_turn = table if where is None else table.take(out_of_order(len(table), where))
    path = kit.write_files(tmp_path / "rows", in_turn, 9)
    stops = 0
    for parts in range(1, 100):
        try:
            dataset = open_data(path, cache=tmp_path / "cache", watch=_stop_after(parts))
            break
        except _Stopped:
            stops += 1
    assert stops > 1
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(BLOCK)


def test_what_an_earlier_version_began_goes_on_by_episode(tmp_path, monkeypatch):
    """It brought all rows together, and wrote nothing of how it dealt with them."""
    path = kit.write_files(tmp_path / "rows", rows(tmp_path), 9)
    with monkeypatch.context() as earlier:
        earlier.setattr(making, "_begins_in_order", lambda *_: False)
        with pytest.raises(_Stopped):
            open_data(path, cache=tmp_path / "cache", watch=_stop_after(14))
    (folder,) = (tmp_path / "cache" / "prepared").iterdir()
    assert list(resolve(folder).child(FOLDER, "commits").files())
    found = kit.read_block(open_data(Reading((path,)), cache=tmp_path / "cache"))
    assert episode_hashes(found) == episode_hashes(BLOCK)
    assert not (folder / FOLDER / "dealing.json").exists()
