"""What an earlier version wrote opens, goes on, and gives what it would have given: tests/fixtures has it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hindcast.api.loading import load_resources
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.storage.location import resolve
from support import MemoryReporter, episode_hashes, read_all, train

WRITTEN = Path(__file__).parents[1] / "fixtures" / "053aa6a"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A copy, with which one may work in place."""
    shutil.copytree(WRITTEN, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("layout", ["episodes", "messagepack", "columns"])
def test_recordings_hold_the_same_episodes(written, layout):
    assert episode_hashes(read_all(layout)) == EXPECTED[layout]
    assert sum(commit.episodes for commit in read_commits(resolve(layout)).values()) == 12


def test_a_prepared_cache_holds_the_same_episodes(written):
    prepared, recorded = read_all("prepared"), read_all("columns")
    assert sorted(prepared.eps_id) == sorted(recorded.eps_id)
    lengths = dict(zip(recorded.eps_id, recorded.length, strict=True))
    assert dict(zip(prepared.eps_id, prepared.length, strict=True)) == lengths


def test_a_training_goes_on_with_the_batches_it_would_have_had(written):
    reporter = MemoryReporter()
    train(load_resources(["train.yaml"])[0].resource, reporter=reporter)
    assert any("resum" in note for note in reporter.notes)
    lines = (written / "runs/clone/r1/results.jsonl").read_text().splitlines()
    losses = [json.loads(line)["learners"]["default_policy"]["policy_loss"] for line in lines]
    assert losses == pytest.approx(EXPECTED["losses"], rel=1e-6)
