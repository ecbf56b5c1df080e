"""What an earlier version wrote opens, resumes, and gives what it would have given: tests/fixtures has it."""

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

WRITTEN = Path(__file__).parents[1] / "fixtures" / "053aa6a"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())
HERE = "/proc/self/cwd"
"""An absolute path to the working folder that is the same in every folder, as the digest of prepared data needs it."""
CHANGED_NS = 1_700_000_000 * 10**9
PARTITION_BYTES = 4 << 10


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A copy to work in, whose sources of prepared data were changed when they were."""
    shutil.copytree(WRITTEN, tmp_path, dirs_exist_ok=True)
    for folder in ("scrambled", "backwards", "anonymous"):
        for file in (tmp_path / folder).iterdir():
            os.utime(file, ns=(CHANGED_NS, CHANGED_NS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def batches(monkeypatch):
    """The hashes of the batches that BC learns from."""
    found, losses = [], BC.losses

    def note(self, nets, batch, step):
        sha = hashlib.sha256()
        for name in ("obs", "actions"):
            sha.update(np.ascontiguousarray(batch[name].numpy()).tobytes())
        found.append(sha.hexdigest()[:16])
        return losses(self, nets, batch, step)

    monkeypatch.setattr(BC, "losses", note)
    return found


def trained(name, reporter=None):
    """Carry out the training in a file."""
    train(load_resources([name])[0].resource, reporter=reporter)


def prepared_hashes(source):
    """Hashes of the episodes that are prepared from a source in the working folder, and the folder of the cache."""
    dataset = open_data(f"{HERE}/{source}", cache="cache", verify=True)
    block = Block.concat([dataset.read(unit) for unit in dataset.units])
    return episode_hashes(block), Path(dataset.units[0].parts[0].path).parent


@pytest.mark.parametrize("layout", ["episodes", "messagepack", "columns"])
def test_recordings_hold_the_same_episodes(written, layout):
    assert episode_hashes(read_all(layout)) == EXPECTED[layout]
    assert sum(commit.episodes for commit in read_commits(resolve(layout)).values()) == 12


def test_an_interrupted_recording_becomes_the_whole_one(written):
    begun = read_commits(resolve("walk"))
    assert list(begun) == [0, 1]
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
    assert {number: commits[number] for number in begun} == begun
    assert len(commits) > 2
    assert not leftovers("walk")


def test_prepared_data_are_found_again(written, monkeypatch):
    monkeypatch.setattr(Preparer, "prepare", lambda *_: pytest.fail("they were prepared again"))
    before = {path: path.stat().st_mtime_ns for path in written.rglob("cache/**/*")}
    hashes, _ = prepared_hashes("scrambled")
    assert hashes == EXPECTED["scrambled"]
    assert {path: path.stat().st_mtime_ns for path in written.rglob("cache/**/*")} == before


@pytest.mark.parametrize("source", ["backwards", "anonymous"])
def test_an_interrupted_preparation_resumes(written, monkeypatch, source):
    """Of `backwards`, whose rows a new preparation would take in stored order, the earlier one grouped them."""
    monkeypatch.setattr(job, "PARTITION_BYTES", PARTITION_BYTES)
    begun = {folder: read_commits(resolve(folder)) for folder in Path("cache/prepared").iterdir()}
    hashes, folder = prepared_hashes(source)
    assert hashes == EXPECTED[source]
    assert set(Path("cache/prepared").iterdir()) == set(begun)
    assert leftovers(folder) == [PREPARED_FILE]
    commits = read_commits(resolve(folder))
    assert {number: commits[number] for number in (0, 1)} == begun[folder]
    assert len(commits) > 2


def test_a_training_resumes_with_the_batches_it_would_have_had(written, batches):
    reporter = MemoryReporter()
    trained("train.yaml", reporter)
    assert any("resum" in note for note in reporter.notes)
    assert batches == EXPECTED["train batches"][24:]
    run = written / "runs/clone/r1"
    lines = (run / "results.jsonl").read_text().splitlines()
    losses = [json.loads(line)["learners"]["default_policy"]["policy_loss"] for line in lines]
    assert losses == pytest.approx(EXPECTED["losses"], rel=1e-6)
    weights = {
        name: [float(np.abs(weight).sum())]
        for name, weight in load_file(run / "module/weights.safetensors").items()
    }
    assert weights == {name: pytest.approx(size, rel=1e-5) for name, size in EXPECTED["weights"].items()}


def test_a_training_on_columns_is_refused_rather_than_resumed_with_other_batches(written, batches):
    """Columns were opened in place. Since 75e492b they are prepared, which gives other units, and so other batches."""
    sentence = (
        r"cannot be resumed: the data in .*, or how Hindcast prepares them, have changed .* higher spec"
    )
    with pytest.raises(DataError, match=sentence):
        execute(load_resources(["in_place.yaml"]), MemoryReporter())
    assert batches == []


def test_a_training_from_the_start_has_the_same_batches(written, batches):
    shutil.rmtree("runs")
    trained("train.yaml")
    assert batches == EXPECTED["train batches"]


def test_each_input_of_a_mix_gives_the_same_batches(written, batches):
    """Which input a batch comes from is not what it was: since cafa348 each has its share exactly.

    Both inputs hold the same timesteps in the same order, so the first occurrences of batches are that order.
    """
    trained("mixed.yaml")
    now, then = (list(dict.fromkeys(hashes)) for hashes in (batches, EXPECTED["mixed batches"]))
    common = min(len(now), len(then))
    assert common > 50
    assert now[:common] == then[:common]
