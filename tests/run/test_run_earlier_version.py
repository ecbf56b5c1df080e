"""Files of an earlier version (tests/fixtures) open and resume with the same results."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hindcast.algorithms.bc import BC
from hindcast.api.loading import load_resources
from hindcast.datasets.prepare import job
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.partitions import PREPARED_FILE
from hindcast.datasets.prepare.preparer import Preparer
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.run.execute import execute
from hindcast.storage.location import resolve
from support import WALK, MemoryReporter, episode_hashes, leftovers, read_all, record, recording, train

FIXTURES = Path(__file__).parents[1] / "fixtures" / "053aa6a"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
HERE = "/proc/self/cwd"
"""An absolute path that is the working folder of every process, because the digest of prepared data contains it."""
SOURCE_MODIFIED_NS = 1_700_000_000 * 10**9
PARTITION_BYTES = 4 << 10


@pytest.fixture
def earlier_files(tmp_path, monkeypatch):
    """A copy of the fixtures as working folder, with the original modification times of prepared sources."""
    shutil.copytree(FIXTURES, tmp_path, dirs_exist_ok=True)
    for folder in ("scrambled", "backwards", "anonymous"):
        for file in (tmp_path / folder).iterdir():
            os.utime(file, ns=(SOURCE_MODIFIED_NS, SOURCE_MODIFIED_NS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def batch_hashes(monkeypatch):
    """Hashes of the batches that BC learns from, in order."""
    hashes, losses = [], BC.losses

    def hash_batch(self, nets, batch, step):
        sha = hashlib.sha256()
        for name in ("obs", "actions"):
            sha.update(np.ascontiguousarray(batch[name].numpy()).tobytes())
        hashes.append(sha.hexdigest()[:16])
        return losses(self, nets, batch, step)

    monkeypatch.setattr(BC, "losses", hash_batch)
    return hashes


def train_file(name, reporter=None):
    """Execute the training in a file."""
    train(load_resources([name])[0].resource, reporter=reporter)


def prepared_hashes(source):
    """Return hashes of the episodes prepared from a source in the working folder, and their folder in the cache."""
    dataset = open_data(f"{HERE}/{source}", cache="cache", verify=True)
    block = Block.concat([dataset.read(unit) for unit in dataset.units])
    return episode_hashes(block), Path(dataset.units[0].parts[0].path).parent


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
    assert {range_index: commits[range_index] for range_index in first_commits} == first_commits
    assert len(commits) > 2
    assert not leftovers("walk")


def test_prepared_data_are_reused(earlier_files, monkeypatch):
    monkeypatch.setattr(Preparer, "prepare", lambda *_: pytest.fail("the data were prepared again"))
    times_before = {path: path.stat().st_mtime_ns for path in earlier_files.rglob("cache/**/*")}
    hashes, _ = prepared_hashes("scrambled")
    assert hashes == EXPECTED["scrambled"]
    assert {path: path.stat().st_mtime_ns for path in earlier_files.rglob("cache/**/*")} == times_before


@pytest.mark.parametrize("source", ["backwards", "anonymous"])
def test_interrupted_preparation_resumes(earlier_files, monkeypatch, source):
    """The earlier version grouped the rows of `backwards`; a new preparation would take them in stored order."""
    monkeypatch.setattr(job, "PARTITION_BYTES", PARTITION_BYTES)
    first_commits = {folder: read_commits(resolve(folder)) for folder in Path("cache/prepared").iterdir()}
    hashes, folder = prepared_hashes(source)
    assert hashes == EXPECTED[source]
    assert set(Path("cache/prepared").iterdir()) == set(first_commits)
    assert leftovers(folder) == [PREPARED_FILE]
    commits = read_commits(resolve(folder))
    assert {range_index: commits[range_index] for range_index in (0, 1)} == first_commits[folder]
    assert len(commits) > 2


def test_training_resumes_with_same_batches(earlier_files, batch_hashes):
    reporter = MemoryReporter()
    train_file("train.yaml", reporter)
    assert any("resum" in note for note in reporter.notes)
    assert batch_hashes == EXPECTED["train batches"][24:]
    run = earlier_files / "runs/clone/r1"
    lines = (run / "results.jsonl").read_text().splitlines()
    losses = [json.loads(line)["learners"]["default_policy"]["policy_loss"] for line in lines]
    assert losses == pytest.approx(EXPECTED["losses"], rel=1e-6)
    weights = {
        name: [float(np.abs(weight).sum())]
        for name, weight in load_file(run / "module/weights.safetensors").items()
    }
    assert weights == {name: pytest.approx(size, rel=1e-5) for name, size in EXPECTED["weights"].items()}


def test_training_on_columns_is_not_resumed_with_other_batches(earlier_files, batch_hashes):
    """Columns were opened in place. Since 75e492b they are prepared, with other units and thus other batches."""
    message = r"cannot be resumed: the data in .*, or how Hindcast prepares them, have changed .* higher spec"
    with pytest.raises(DataError, match=message):
        execute(load_resources(["in_place.yaml"]), MemoryReporter())
    assert batch_hashes == []


def test_training_from_start_has_same_batches(earlier_files, batch_hashes):
    shutil.rmtree("runs")
    train_file("train.yaml")
    assert batch_hashes == EXPECTED["train batches"]


def test_weighted_inputs_give_same_batches(earlier_files, batch_hashes):
    """Since cafa348 each input has its exact share of batches, so the input of a batch may differ.

    Both inputs contain the same timesteps in the same order, so first occurrences of batches give that order.
    """
    train_file("mixed.yaml")
    current_hashes, earlier_hashes = (
        list(dict.fromkeys(hashes)) for hashes in (batch_hashes, EXPECTED["mixed batches"])
    )
    num_common = min(len(current_hashes), len(earlier_hashes))
    assert num_common > 50
    assert current_hashes[:num_common] == earlier_hashes[:num_common]
