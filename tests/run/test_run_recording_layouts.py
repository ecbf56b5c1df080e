"""Recordings in layouts other than Episodes/Arrow: the same episodes, with the same guarantees and trainings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.datasets.prepare.opening import open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import Interrupted
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import resolve
from support import (
    WALK,
    MemoryReporter,
    StopAfter,
    episode_hashes,
    leftovers,
    read_all,
    record,
    recording,
    train,
    training,
)

LAYOUTS = [
    pytest.param({"encoding": "MessagePack"}, "episodes/messagepack", id="MessagePack"),
    pytest.param({"format": "Columns"}, "columns", id="Columns"),
]


@pytest.mark.parametrize(("output", "layout"), LAYOUTS)
class TestLayouts:
    def test_layout_stores_same_episodes(
        self, tmp_path: Path, walks: Path, output: dict[str, Any], layout: str
    ) -> None:
        record(recording(tmp_path, output=output))
        hashes, expected = (set(episode_hashes(read_all(path)).values()) for path in (tmp_path, walks))
        assert hashes == expected
        manifest = read_manifest(resolve(tmp_path))
        assert manifest is not None
        assert manifest.layout == layout
        assert leftovers(tmp_path) == []

    def test_interrupted_recording_resumes_with_same_episodes(
        self, tmp_path: Path, walks: Path, output: dict[str, Any], layout: str
    ) -> None:
        resource = recording(tmp_path, output={**output, "maxRowsPerFile": 8})
        with pytest.raises(Interrupted):
            record(resource, StopAfter(25))
        record(resource)
        hashes, expected = (set(episode_hashes(read_all(path)).values()) for path in (tmp_path, walks))
        assert hashes == expected

    def test_duration_in_timesteps_keeps_shortest_prefix(
        self, tmp_path: Path, output: dict[str, Any], layout: str
    ) -> None:
        record(recording(tmp_path, output=output, duration={"timesteps": 300}))
        lengths = read_all(tmp_path).length.tolist()
        assert sum(lengths) >= 300 > sum(lengths[:-1])
        assert {
            pq.ParquetFile(path).schema_arrow.metadata is not None for path in tmp_path.glob("*.parquet")
        } == {True}

    def test_training_equals_training_on_arrow(
        self, tmp_path: Path, output: dict[str, Any], layout: str
    ) -> None:
        record(recording(tmp_path / "layout", output=output))
        record(recording(tmp_path / "arrow"))
        outcomes = [
            train(training(tmp_path / f"run-{name}", opened_path(tmp_path / name)))
            for name in ("layout", "arrow")
        ]
        assert outcomes[0].metrics["loss"] == outcomes[1].metrics["loss"]


def opened_path(folder: Path) -> str:
    """Return the path that a training on this folder opens."""
    (path,) = open_reading(Reading((str(folder),)), cache=folder.parent / "cache").paths
    return str(path)


@pytest.mark.parametrize(("output", "layout"), LAYOUTS)
def test_files_of_other_tools_train_like_recording(
    tmp_path: Path, output: dict[str, Any], layout: str
) -> None:
    """Files without manifest and metadata that contain each episode twice train like the recording, with notes."""
    record(recording(tmp_path / "data", output=output))
    table = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "data").glob("*.parquet")))
    (tmp_path / "others").mkdir()
    for name in ("a", "b"):
        pq.write_table(table.replace_schema_metadata(None), tmp_path / "others" / f"{name}.parquet")
    reporter = MemoryReporter()
    opened_data = open_reading(Reading((str(tmp_path / "others"),)), cache=tmp_path / "cache")
    outcome = train(training(tmp_path / "one", opened_data.paths[0], environment=WALK), reporter=reporter)
    expected = train(training(tmp_path / "other", opened_path(tmp_path / "data"), environment=WALK))
    assert outcome.metrics["loss"] == expected.metrics["loss"]
    assert [
        note
        for note in (*reporter.notes, *opened_data.notes)
        if re.search(r"\d (rows|stored episodes) repeat", note)
    ]
