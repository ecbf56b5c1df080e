"""Recordings of an earlier version (tests/fixtures) open and resume with the same episodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.storage.location import resolve
from support import WALK, MemoryReporter, episode_hashes, leftovers, read_all, record, recording

FIXTURES = Path(__file__).parents[1] / "fixtures" / "053aa6a"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())


@pytest.fixture
def earlier_files(tmp_path, monkeypatch):
    """A copy of the fixtures as working folder."""
    shutil.copytree(FIXTURES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("layout", ["episodes", "messagepack", "columns"])
def test_recordings_open_with_same_episodes(earlier_files, layout):
    assert episode_hashes(read_all(layout)) == EXPECTED[layout]
    assert sum(commit.episodes for commit in read_commits(resolve(layout)).values()) == 12


def test_interrupted_recording_completes_with_same_episodes(earlier_files):
    first_commits = read_commits(resolve("walk"))
    assert list(first_commits) == [0, 1]
    assert leftovers("walk")
    reporter = MemoryReporter()
    runners = {"envsPerRunner": 2}
    record(
        recording("walk", environment=WALK, duration={"timesteps": 200}, runners=runners, seed=7),
        reporter=reporter,
    )
    assert any("resum" in note for note in reporter.notes)
    assert episode_hashes(read_all("walk")) == EXPECTED["walk"]
    commits = read_commits(resolve("walk"))
    assert {number: commits[number] for number in first_commits} == first_commits
    assert len(commits) > 2
    assert not leftovers("walk")
