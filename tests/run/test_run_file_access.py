"""A folder of data is listed once, and each of its files is opened once, however many packages need it."""

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
from hindcast.run.inputs import resolve_inputs
from hindcast.run.interruption import Interruption
from hindcast.storage.location import Location
from support import WALK, MemoryReporter, record, recording, training


@pytest.fixture
def folder_with_manifest(tmp_path: Path) -> Path:
    """Ten files with a manifest."""
    record(recording(tmp_path / "folder_with_manifest", output={"maxRowsPerFile": 4}))
    return tmp_path / "folder_with_manifest"


@pytest.fixture
def folder_without_manifest(tmp_path: Path) -> Path:
    """Ten files without a manifest."""
    record(recording(tmp_path / "folder_without_manifest", output={"maxRowsPerFile": 4}))
    (tmp_path / "folder_without_manifest/_hindcast").rename(tmp_path / "elsewhere")
    return tmp_path / "folder_without_manifest"


@pytest.fixture
def access_counts(
    folder_with_manifest: Path, folder_without_manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> Counter[str]:
    """Number of times that each folder was listed and each footer read; reads of units do not count."""
    counts: Counter[str] = Counter()

    def count_calls(function: Any) -> Any:
        def call(location: Location, *args: Any, **options: Any) -> Any:
            if location.path.startswith((str(folder_with_manifest), str(folder_without_manifest))):
                counts[location.path] += 1
            return function(location, *args, **options)

        return call

    monkeypatch.setattr(Location, "list", count_calls(Location.list))
    monkeypatch.setattr(file_index, "open_parquet", count_calls(file_index.open_parquet))
    return counts


def expected_counts(folder: Path, *, with_files: bool) -> Counter[str]:
    files = list(folder.glob("*.parquet"))
    assert len(files) == 10
    return Counter(map(str, [folder, *(files if with_files else [])]))


def test_training_and_report_open_each_file_once(
    tmp_path: Path,
    folder_with_manifest: Path,
    folder_without_manifest: Path,
    access_counts: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages: list[Any] = []
    monkeypatch.setattr(writing, "write_page", lambda _, page: pages.append(page))  # drawing takes seconds
    inputs_spec = [{"path": str(folder_with_manifest)}, {"path": str(folder_without_manifest)}]
    resource = training(tmp_path / "runs", folder_with_manifest, environment=WALK, input=inputs_spec)
    inputs = resolve_inputs(resource, FileReferences({}))
    execute_training(resource, inputs, MemoryReporter(), Interruption())
    assert [section.title for section in pages[0].sections][1:] == [
        f"The data: {folder_with_manifest}",
        f"The data: {folder_without_manifest}",
    ]
    assert not pages[0].problems
    assert access_counts == expected_counts(folder_with_manifest, with_files=False) + expected_counts(
        folder_without_manifest, with_files=True
    )


def test_inspect_opens_each_file_once(
    folder_with_manifest: Path, folder_without_manifest: Path, access_counts: Counter[str]
) -> None:
    # Inspection compares a manifest with the files, so it opens them in both folders.
    for folder in (folder_with_manifest, folder_without_manifest):
        assert inspect_data(Reading((str(folder),))).episodes == 40
        assert access_counts == expected_counts(folder, with_files=True)
        access_counts.clear()
