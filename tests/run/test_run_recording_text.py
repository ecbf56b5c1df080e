"""Recordings in text formats: the same episodes, with the same guarantees, after preparation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.episodes.block import Block
from hindcast.errors import Interrupted, OutputConflict, SpecError
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import resolve
from support import WALK, StopAfter, episode_hashes, leftovers, read_all, record, recording

FORMATS = ("JSON", "CSV", "SampleBatch")


def episode_hash_list(block: Block) -> list[str]:
    """Return sorted hashes of the episodes without ids; empty infos do not count."""
    columns = {name: column for name, column in block.columns.items() if name != "infos" or column.any()}
    return sorted(episode_hashes(block.with_columns(columns)).values())


def read_prepared(folder: Path, cache: Path) -> Block:
    dataset = open_data(folder, cache=cache)
    return Block.concat([dataset.read(unit) for unit in dataset.units])


@pytest.mark.parametrize("form", FORMATS)
class TestFormats:
    def test_format_stores_same_episodes(self, tmp_path: Path, walks: Path, form: str) -> None:
        record(recording(tmp_path / "data", output={"format": form}))
        assert episode_hash_list(read_prepared(tmp_path / "data", tmp_path / "cache")) == episode_hash_list(
            read_all(walks)
        )
        manifest = read_manifest(resolve(tmp_path / "data"))
        assert manifest is not None
        assert manifest.layout == form
        assert leftovers(tmp_path / "data") == []

    def test_interrupted_recording_resumes_with_same_episodes(
        self, tmp_path: Path, walks: Path, form: str
    ) -> None:
        resource = recording(tmp_path / "data", output={"format": form, "maxRowsPerFile": 8})
        with pytest.raises(Interrupted):
            record(resource, StopAfter(25))
        (tmp_path / "data" / "000009-abcd-000.json").write_text("from a killed runner")
        record(resource)
        assert episode_hash_list(read_prepared(tmp_path / "data", tmp_path / "cache")) == episode_hash_list(
            read_all(walks)
        )
        assert leftovers(tmp_path / "data") == []
        assert record(resource).state == "AlreadyFinished"

    def test_unfinished_recording_opens_with_committed_episodes(
        self, tmp_path: Path, walks: Path, form: str
    ) -> None:
        """A killed recording leaves commits, uncommitted files, and no manifest."""
        data = tmp_path / "data"
        with pytest.raises(Interrupted):
            record(recording(data, output={"format": form}), StopAfter(25))
        assert read_manifest(resolve(data)) is None
        (first_file, *_) = (commit.files[0].path for commit in read_commits(resolve(data)).values())
        (data / f"000009-abcd-000{Path(first_file).suffix}").write_bytes((data / first_file).read_bytes())
        block, complete_block = read_prepared(data, tmp_path / "cache"), read_all(walks)
        num_committed = sum(commit.episodes for commit in read_commits(resolve(data)).values())
        assert 0 < block.num_episodes == num_committed < complete_block.num_episodes
        assert set(episode_hash_list(block)) < set(episode_hash_list(complete_block))
        assert block.columns["obs"].dtype == complete_block.columns["obs"].dtype
        spec = open_data(data, cache=tmp_path / "cache").spec
        assert spec.observation_space == open_dataset(walks).spec.observation_space

    def test_duration_in_timesteps_keeps_shortest_prefix(self, tmp_path: Path, form: str) -> None:
        for name, output in (("text", {"format": form}), ("arrow", {})):
            record(recording(tmp_path / name, output=output, duration={"timesteps": 300}))
        text_hashes = episode_hash_list(read_prepared(tmp_path / "text", tmp_path / "cache"))
        assert text_hashes == episode_hash_list(read_all(tmp_path / "arrow"))
        assert leftovers(tmp_path / "text") == []

    def test_composite_spaces_and_infos_are_stored(self, tmp_path: Path, form: str) -> None:
        environment = {"id": "toy_environments:Composite"}
        for name, output in (("text", {"format": form}), ("arrow", {})):
            record(recording(tmp_path / name, environment=environment, output=output))
        text_hashes = episode_hash_list(read_prepared(tmp_path / "text", tmp_path / "cache"))
        assert text_hashes == episode_hash_list(read_all(tmp_path / "arrow"))

    def test_replace_deletes_files_of_other_format(self, tmp_path: Path, form: str) -> None:
        record(recording(tmp_path, output={"format": form}))
        first_files = set(tmp_path.glob("0*"))
        with pytest.raises(OutputConflict):
            record(recording(tmp_path, output={"format": form}, seed=1))
        record(recording(tmp_path, output={"format": "Columns", "onExisting": "Replace"}, seed=1))
        assert not first_files & set(tmp_path.glob("0*"))
        assert read_all(tmp_path).num_episodes == 40


def test_frames_in_csv_are_refused_before_expert_is_trained(tmp_path: Path) -> None:
    policy: dict[str, Any] = {"train": {"stop": {"timesteps": 10**9}}}
    environment = {"id": "toy_environments:Frames"}
    resource = recording(tmp_path, output={"format": "CSV"}, environment=environment, policy=policy)
    with pytest.raises(SpecError, match=r"output\.format is CSV: 'obs' has .* CSV allows at most 1,024"):
        record(resource)
    assert list(tmp_path.glob("0*")) == []


def test_max_rows_count_episodes_or_timesteps(tmp_path: Path) -> None:
    for form in FORMATS:
        record(recording(tmp_path / form, environment=WALK, output={"format": form, "maxRowsPerFile": 8}))
    num_lines = {len(path.read_text().splitlines()) for path in (tmp_path / "SampleBatch").glob("0*.json")}
    assert num_lines == {8}  # a line is an episode; in the other formats a row is a timestep
    for path in (tmp_path / "JSON").glob("0*.json"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(rows) <= 8 or len({row["eps_id"] for row in rows}) == 1
    num_csv_rows = [
        np.loadtxt(path, str, skiprows=1, ndmin=1).size for path in (tmp_path / "CSV").glob("0*.csv")
    ]
    assert sum(num_csv_rows) == sum(
        len(path.read_text().splitlines()) for path in (tmp_path / "JSON").glob("0*.json")
    )
