"""Recordings in layouts other than Episodes/Arrow: the same episodes, with the same guarantees and trainings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import Interrupted, OutputConflict, SpecError
from hindcast.formats.dataset_folder.commits import read_commits
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

TABLES = {"episodes/messagepack": {"encoding": "MessagePack"}, "columns": {"format": "Columns"}}
TEXTS = {form: {"format": form} for form in ("JSON", "CSV", "SampleBatch")}
OUTPUTS: dict[str, dict[str, Any]] = {**TABLES, **TEXTS}
"""Name of a layout -> section of a recording that writes it."""
SPECS: dict[str, dict[str, Any]] = {
    "300 timesteps": {"duration": {"timesteps": 300}},
    "composite spaces and infos": {"environment": {"id": "toy_environments:Composite"}},
}
each_layout = pytest.mark.parametrize("layout", OUTPUTS)
each_table = pytest.mark.parametrize("layout", TABLES)


def sorted_hashes(folder: Path) -> list[str]:
    """Return sorted hashes of the episodes without ids; empty infos do not count."""
    block = read_all(folder)
    columns = {name: column for name, column in block.columns.items() if name != "infos" or column.any()}
    return sorted(episode_hashes(block.with_columns(columns)).values())


@pytest.fixture(scope="module")
def arrow_hashes(walks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Hashes of the episodes of `walks` and, by name, of `SPECS`, recorded in the default layout."""
    folder = tmp_path_factory.mktemp("arrow")
    for name, spec in SPECS.items():
        record(recording(folder / name, **spec))
    return {"walks": sorted_hashes(walks)} | {name: sorted_hashes(folder / name) for name in SPECS}


@each_layout
def test_interrupted_recording_resumes_with_same_episodes(
    tmp_path: Path, layout: str, arrow_hashes: dict[str, list[str]]
) -> None:
    resource = recording(tmp_path, output={**OUTPUTS[layout], "maxRowsPerFile": 8})
    with pytest.raises(Interrupted):
        record(resource, StopAfter(25))
    (tmp_path / "000009-abcd-000.json").write_text("from a killed runner")
    record(resource)
    assert sorted_hashes(tmp_path) == arrow_hashes["walks"]
    manifest = read_manifest(resolve(tmp_path))
    assert manifest is not None
    assert manifest.layout == layout
    assert leftovers(tmp_path) == []
    assert record(resource).state == "AlreadyFinished"


@each_layout
def test_unfinished_recording_opens_with_committed_episodes(
    tmp_path: Path, walks: Path, layout: str, arrow_hashes: dict[str, list[str]]
) -> None:
    """A killed recording leaves commits, uncommitted files, and no manifest."""
    with pytest.raises(Interrupted):
        record(recording(tmp_path, output=OUTPUTS[layout]), StopAfter(25))
    assert read_manifest(resolve(tmp_path)) is None
    commits = read_commits(resolve(tmp_path))
    first_file = tmp_path / commits[0].files[0].path
    (tmp_path / f"000009-abcd-000{first_file.suffix}").write_bytes(first_file.read_bytes())
    block, complete_block = read_all(tmp_path), read_all(walks)
    assert 0 < block.num_episodes == sum(commit.episodes for commit in commits.values()) < 40
    assert set(sorted_hashes(tmp_path)) < set(arrow_hashes["walks"])
    assert block.columns["obs"].dtype == complete_block.columns["obs"].dtype
    spec = open_data(tmp_path, cache=tmp_path.parent / "cache").spec
    assert spec.observation_space == open_dataset(walks).spec.observation_space


@each_layout
@pytest.mark.parametrize("name", SPECS)
def test_layout_stores_same_episodes(
    tmp_path: Path, layout: str, name: str, arrow_hashes: dict[str, list[str]]
) -> None:
    record(recording(tmp_path, output=OUTPUTS[layout], **SPECS[name]))
    assert sorted_hashes(tmp_path) == arrow_hashes[name]
    assert leftovers(tmp_path) == []


@each_layout
def test_replace_deletes_files_of_other_layout(tmp_path: Path, layout: str) -> None:
    record(recording(tmp_path, output=OUTPUTS[layout]))
    first_files = set(tmp_path.glob("0*"))
    with pytest.raises(OutputConflict):
        record(recording(tmp_path, output=OUTPUTS[layout], seed=1))
    record(recording(tmp_path, output={"onExisting": "Replace"}, seed=1))
    assert not first_files & set(tmp_path.glob("0*"))
    assert read_all(tmp_path).num_episodes == 40


@each_table
def test_training_equals_training_on_arrow(tmp_path: Path, layout: str) -> None:
    losses = []
    for name, output in (("layout", OUTPUTS[layout]), ("arrow", {})):
        record(recording(tmp_path / name, output=output))
        losses.append(train(training(tmp_path / f"run-{name}", opened_path(tmp_path / name))).metrics["loss"])
    assert losses[0] == losses[1]


def opened_path(folder: Path) -> str:
    """Return the path that a training on this folder opens."""
    (path,) = open_reading(Reading((str(folder),)), cache=folder.parent / "cache").paths
    return str(path)


@each_table
def test_files_of_other_tools_train_like_recording(tmp_path: Path, layout: str) -> None:
    """Files without manifest and metadata that contain each episode twice train like the recording, with notes."""
    record(recording(tmp_path / "data", output=OUTPUTS[layout]))
    tables = [pq.read_table(path) for path in sorted((tmp_path / "data").glob("*.parquet"))]
    assert all(table.schema.metadata for table in tables)
    (tmp_path / "others").mkdir()
    for name in ("a", "b"):
        table = pa.concat_tables(tables).replace_schema_metadata(None)
        pq.write_table(table, tmp_path / "others" / f"{name}.parquet")
    reporter = MemoryReporter()
    opened_data = open_reading(Reading((str(tmp_path / "others"),)), cache=tmp_path / "cache")
    outcome = train(training(tmp_path / "one", opened_data.paths[0], environment=WALK), reporter=reporter)
    expected = train(training(tmp_path / "other", opened_path(tmp_path / "data"), environment=WALK))
    assert outcome.metrics["loss"] == expected.metrics["loss"]
    notes = (*reporter.notes, *opened_data.notes)
    assert any(re.search(r"\d (rows|stored episodes) repeat", note) for note in notes)


def test_frames_in_csv_are_refused_before_expert_is_trained(tmp_path: Path) -> None:
    policy: dict[str, Any] = {"train": {"stop": {"timesteps": 10**9}}}
    environment = {"id": "toy_environments:Frames"}
    resource = recording(tmp_path, output={"format": "CSV"}, environment=environment, policy=policy)
    with pytest.raises(SpecError, match=r"output\.format is CSV: 'obs' has .* CSV allows at most 1,024"):
        record(resource)
    assert list(tmp_path.glob("0*")) == []


def test_max_rows_count_episodes_or_timesteps(tmp_path: Path) -> None:
    for form, output in TEXTS.items():
        record(recording(tmp_path / form, output={**output, "maxRowsPerFile": 8}))
    num_lines = {len(path.read_text().splitlines()) for path in (tmp_path / "SampleBatch").glob("0*.json")}
    assert num_lines == {8}  # a line is an episode; in the other formats a row is a timestep
    json_lines = [path.read_text().splitlines() for path in (tmp_path / "JSON").glob("0*.json")]
    for lines in json_lines:
        assert len(lines) <= 8 or len({json.loads(line)["eps_id"] for line in lines}) == 1
    csv_rows = [np.loadtxt(path, str, skiprows=1, ndmin=1).size for path in (tmp_path / "CSV").glob("0*.csv")]
    assert sum(csv_rows) == sum(map(len, json_lines))
