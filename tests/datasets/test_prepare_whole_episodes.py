"""Data stored as complete episodes: rows are not sorted, but unfinished episodes are reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from prepare_kit import make_block, read_block, write_files

from hindcast.api.input import PrepareSpec
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import Format, Piece, ReadOptions
from hindcast.formats.registry import FORMATS
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location, resolve


class EpisodeFormat(Format):
    """A format that reads five complete episodes; e1 and e3 are neither terminated nor truncated."""

    name = "CSV"  # the tests replace this format

    def recognises(self, location: Location) -> bool:
        return True

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        return [Piece(location, 1000)]

    def describe(self, location: Location) -> DataSpec:
        return DataSpec()

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Block]:
        yield replace(make_block([3, 2, 4, 5, 1]), truncated=np.zeros(5, dtype=np.bool_))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(FORMATS, "CSV", EpisodeFormat())
    (tmp_path / "episodes.csv").write_text("")
    return str(tmp_path / "episodes.csv")


def make_reading(path: str, unfinished: str) -> Reading:
    return Reading((path,), format="CSV", prepare=PrepareSpec(unfinished=unfinished))


def test_unfinished_episodes_are_kept_and_noted(path: str) -> None:
    dataset = open_data(make_reading(path, "Keep"))
    assert read_block(dataset).eps_id.tolist() == ["e0", "e1", "e2", "e3", "e4"]
    assert "2 episodes end neither terminated nor truncated; first: episode e1" in dataset.notes


def test_unfinished_episodes_are_dropped_and_noted(path: str) -> None:
    dataset = open_data(make_reading(path, "Drop"))
    assert read_block(dataset).eps_id.tolist() == ["e0", "e2", "e4"]
    assert "7 rows of unfinished episodes were dropped; first: episode e1" in dataset.notes


def test_unfinished_episodes_are_refused(path: str) -> None:
    with pytest.raises(DataError, match=r"episodes\.csv: episode e1 ends neither terminated nor truncated"):
        open_data(make_reading(path, "Refuse"))


@pytest.fixture
def dataset_path(tmp_path: Path) -> str:
    """Write episodes as RLlib does, one of them unfinished and one stored twice; return their folder."""
    block = replace(make_block([3, 2, 4]), truncated=np.zeros(3, dtype=np.bool_))
    spec = DataSpec.from_block(block)
    with BlockWriter(resolve(tmp_path / "hindcast"), spec, "a", layout="episodes/messagepack") as writer:
        writer.write(block.take([0, 1, 2, 0]))
    (path,) = (tmp_path / "hindcast").glob("*.parquet")
    return write_files(tmp_path / "rows", pq.read_table(path).replace_schema_metadata(None))


def test_rules_apply_to_files_of_complete_episodes(dataset_path: str) -> None:
    assert read_block(open_data(dataset_path)).eps_id.tolist() == ["e0", "e1", "e2"]
    remaining_dataset = open_data(Reading((dataset_path,), prepare=PrepareSpec(unfinished="Drop")))
    assert read_block(remaining_dataset).eps_id.tolist() == ["e0", "e2"]
    assert "2 rows of unfinished episodes were dropped; first: episode e1" in remaining_dataset.notes
    with pytest.raises(DataError, match="episode e1 ends neither terminated nor truncated"):
        open_data(Reading((dataset_path,), prepare=PrepareSpec(unfinished="Refuse")))
    with pytest.raises(DataError, match="has 1 stored episode with the id and the content of another"):
        open_data(Reading((dataset_path,), prepare=PrepareSpec(duplicates="Refuse")))


def test_file_named_twice_is_refused(path: str) -> None:
    with pytest.raises(DataError, match="occurs twice in the paths, so its episodes would count twice"):
        open_data(Reading((path, path), format="CSV"))
