"""A folder of data is listed once, and each of its files opened once, however many parts of Hindcast need them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hindcast.datasets import file_index
from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.report import writing
from hindcast.run.execute import FileReferences, execute_training
from hindcast.run.inputs import inputs_of
from hindcast.run.interruption import Interruption
from hindcast.storage.location import Location
from support import WALK, MemoryReporter, record, recording, training


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Ten files, and a manifest that says what is in them."""
    record(recording(tmp_path / "recorded", output={"maxRowsPerFile": 4}))
    return tmp_path / "recorded"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Ten files of which nothing is known."""
    record(recording(tmp_path / "plain", output={"maxRowsPerFile": 4}))
    (tmp_path / "plain/_hindcast").rename(tmp_path / "elsewhere")
    return tmp_path / "plain"


@pytest.fixture
def counted(recorded: Path, plain: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each folder of data was listed, and each file looked into; reading units does not count."""
    found: Counter[str] = Counter()

    def counting(function: Any) -> Any:
        def call(place: Location, *args: Any, **options: Any) -> Any:
            if place.path.startswith((str(recorded), str(plain))):
                found[place.path] += 1
            return function(place, *args, **options)

        return call

    monkeypatch.setattr(Location, "list", counting(Location.list))
    monkeypatch.setattr(file_index, "open_parquet", counting(file_index.open_parquet))
    return found


def once(folder: Path, *, with_files: bool) -> Counter[str]:
    files = list(folder.glob("*.parquet"))
    assert len(files) == 10
    return Counter(map(str, [folder, *(files if with_files else [])]))


def test_by_a_training_and_its_report(
    tmp_path: Path, recorded: Path, plain: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[Any] = []
    monkeypatch.setattr(writing, "write_page", lambda _, page: pages.append(page))  # drawing takes seconds
    both = [{"path": str(recorded)}, {"path": str(plain)}]
    resource = training(tmp_path / "runs", recorded, environment=WALK, input=both)
    inputs = inputs_of(resource, FileReferences({}))
    execute_training(resource, inputs, MemoryReporter(), Interruption())
    assert [section.title for section in pages[0].sections][1:] == [
        f"The data: {recorded}",
        f"The data: {plain}",
    ]
    assert not pages[0].problems
    assert counted == once(recorded, with_files=False) + once(plain, with_files=True)


def test_by_inspecting(recorded: Path, plain: Path, counted: Counter[str]) -> None:
    for folder in (recorded, plain):  # what a manifest says is compared with the files
        assert inspect_data(Reading((str(folder),))).episodes == 40
        assert counted == once(folder, with_files=True)
        counted.clear()
