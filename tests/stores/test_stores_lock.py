"""One process at a time fills a folder of a store."""

from __future__ import annotations

import os
import subprocess
import sys

import orjson
import pytest

from hindcast import PPOConfig
from hindcast.curate.target import Target
from hindcast.curate.writing import write
from hindcast.errors import OutputConflict
from hindcast.prepare.watch import Watch
from hindcast.store import lock_object
from hindcast.store.commits import read_commits
from hindcast.store.dataset import open_dataset
from hindcast.store.filesystem import resolve
from hindcast.store.manifest import FOLDER
from hindcast.store.sole_writer import sole_writer
from support import episode_hashes, read_all
from toy_environments import Walk

DIES_WITH_THE_LOCK = """
import os, signal, sys
from hindcast.store.filesystem import resolve
from hindcast.store.sole_writer import sole_writer

with sole_writer(resolve(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def held_elsewhere(state, renewed):
    holder = {"token": "theirs", "machine": "node-7 x", "process": 12, "renewed": renewed}
    state.child("lock").write_bytes(orjson.dumps(holder))


def test_two_conversions_at_once_are_one(place, walks):
    dataset, out = open_dataset(walks), resolve(place.uri)
    refused = []

    def second(stage, done, total):
        if not refused:
            with pytest.raises(OutputConflict, match=rf"another process \({os.getpid()} on ") as caught:
                write(dataset, Target(out))
            refused.append(caught.value)

    write(dataset, Target(out), watch=Watch(progress=second))
    assert refused[0].exit_code == 4
    assert episode_hashes(read_all(place.uri)) == episode_hashes(read_all(walks))
    assert not out.child(FOLDER, "lock").exists()
    assert write(dataset, Target(out)).state == "AlreadyFinished"


def test_who_lost_the_lock_writes_nothing_more(s3, walks):
    dataset, out = open_dataset(walks), resolve(s3.uri)

    def take_over(stage, done, total):
        held_elsewhere(out.child(FOLDER), renewed=lock_object.time.time())

    with pytest.raises(OutputConflict, match="another process has begun to write to"):
        write(dataset, Target(out), watch=Watch(progress=take_over))
    assert read_commits(out) == {}
    assert orjson.loads(out.child(FOLDER, "lock").read_bytes())["token"] == "theirs"


def test_evaluations_that_lost_the_lock_write_nothing_more(s3):
    config = PPOConfig().environment(Walk).rl_module(model_config={"fcnet_hiddens": [8]})
    config = config.evaluation(evaluation_duration=4).offline_data(output=s3.uri)
    with (
        pytest.raises(OutputConflict, match="another process has begun to write to"),
        config.build_algo() as algo,
    ):
        algo.evaluate()
        counted = read_commits(resolve(s3.uri)).keys()
        held_elsewhere(s3.at(FOLDER), renewed=lock_object.time.time())
        algo.evaluate()
    assert read_commits(resolve(s3.uri)).keys() == counted


def test_the_lock_of_a_process_killed_here_is_taken_at_once(s3):
    command = [sys.executable, "-c", DIES_WITH_THE_LOCK, s3.uri]
    assert subprocess.run(command, check=False, timeout=60).returncode < 0
    assert s3.at("lock").exists()
    with sole_writer(resolve(s3.uri)) as guard:
        guard()
    assert not s3.at("lock").exists()


def test_the_lock_of_another_machine_lapses(s3):
    state = resolve(s3.uri)
    held_elsewhere(state, renewed=lock_object.time.time() - 60)
    with (
        pytest.raises(OutputConflict, match=r"\(12 on node-7\) is writing .* lapses in 1[12]\d seconds"),
        sole_writer(state),
    ):
        pass
    held_elsewhere(state, renewed=lock_object.time.time() - 200)
    with sole_writer(state):
        pass


def test_a_lock_that_is_renewed_does_not_lapse(s3, monkeypatch):
    monkeypatch.setattr(lock_object, "_RENEWED_EVERY_S", 0.05)
    state = resolve(s3.uri)
    with sole_writer(state):
        first = s3.at("lock").read_bytes()
        while s3.at("lock").read_bytes() == first:
            """It is written again."""
