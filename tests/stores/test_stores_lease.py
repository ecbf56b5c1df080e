"""One process at a time writes to a folder in a store."""

from __future__ import annotations

import os
import re
import subprocess
import threading

import orjson
import pytest

from hindcast import PPOConfig
from hindcast.datasets.curate.writing import write
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.target import Target
from hindcast.errors import OutputConflict
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.storage import lease
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import resolve
from layers import repeats
from support import episode_hashes, race_for_lease, read_all
from toy_environments import Walk

PROGRAM_KILLED_WITH_LEASE = """
import os, signal, sys
from hindcast.storage.location import resolve
from hindcast.storage.lease import sole_writer

with sole_writer(resolve(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def write_foreign_lease(state, renewed):
    holder = {"token": "theirs", "machine": "node-7 x", "process": 12, "renewed": renewed}
    state.child("lock", "000009.json").write_bytes(orjson.dumps(holder))


def test_second_conversion_into_one_folder_is_refused(store_folder, walks):
    dataset, out = open_dataset(walks), resolve(store_folder.uri)
    errors = []

    def convert_again(stage, done, total):
        if not errors:
            with pytest.raises(OutputConflict, match=rf"another process \({os.getpid()} on ") as error:
                write(dataset, Target(out))
            errors.append(error.value)

    write(dataset, Target(out), hooks=Hooks(progress=convert_again))
    assert errors[0].exit_code == 4
    assert episode_hashes(read_all(store_folder.uri)) == episode_hashes(read_all(walks))
    assert not out.child(FOLDER, "lock").exists()
    assert write(dataset, Target(out)).state == "AlreadyFinished"


def test_conversion_that_lost_the_lease_stops_writing(s3, walks):
    dataset, out = open_dataset(walks), resolve(s3.uri)

    def take_over(stage, done, total):
        write_foreign_lease(out.child(FOLDER), renewed=lease.time.time())

    with pytest.raises(OutputConflict, match="another process has begun to write to"):
        write(dataset, Target(out), hooks=Hooks(progress=take_over))
    assert read_commits(out) == {}
    assert orjson.loads(out.child(FOLDER, "lock/000009.json").read_bytes())["token"] == "theirs"


def test_evaluation_that_lost_the_lease_stops_writing(s3):
    config = PPOConfig().environment(Walk).rl_module(model_config={"fcnet_hiddens": [8]})
    config = config.evaluation(evaluation_duration=4).offline_data(output=s3.uri)
    lost = pytest.raises(OutputConflict, match="another process has begun to write to")
    with lost, config.build_algo() as algo:
        algo.evaluate()
        committed_numbers = read_commits(resolve(s3.uri)).keys()
        write_foreign_lease(s3.at(FOLDER), renewed=lease.time.time())
        algo.evaluate()
    assert read_commits(resolve(s3.uri)).keys() == committed_numbers


def test_lease_of_a_killed_local_process_is_acquired_immediately(s3, warm):
    command = [str(warm.folder / "python"), "-c", PROGRAM_KILLED_WITH_LEASE, s3.uri]
    assert subprocess.run(command, check=False, timeout=60).returncode < 0
    assert s3.at("lock").exists()
    with sole_writer(resolve(s3.uri)) as guard:
        guard()
    assert not s3.at("lock").exists()


def test_lease_of_another_machine_lapses(s3):
    state = resolve(s3.uri)
    write_foreign_lease(state, renewed=lease.time.time() - 60)
    message = r"\(12 on node-7\) is writing .* lapses in 1[12]\d seconds"
    with pytest.raises(OutputConflict, match=message), sole_writer(state):
        pass
    write_foreign_lease(state, renewed=lease.time.time() - 200)
    with sole_writer(state) as guard:
        guard()
    assert not s3.at("lock").exists()


@pytest.mark.soak
def test_one_of_two_simultaneous_writers_gets_the_lease(store_folder):
    for race in range(repeats(10, soak=100)):
        assert race_for_lease(store_folder.at(f"{race}")) == [False, True]


def test_renewed_lease_does_not_lapse(s3, monkeypatch):
    monkeypatch.setattr(lease, "_RENEWAL_INTERVAL_SECONDS", 0.05)
    state = resolve(s3.uri)
    with sole_writer(state):
        first_content = s3.at("lock/000001.json").read_bytes()
        while s3.at("lock/000001.json").read_bytes() == first_content:
            pass  # until the lease is renewed


def test_renewal_in_progress_at_release_leaves_no_lease(store_folder, monkeypatch):
    monkeypatch.setattr(lease, "_RENEWAL_INTERVAL_SECONDS", 0.05)
    writes = r"^(PUT|POST) .*lock"
    threads_before = set(threading.enumerate())
    with sole_writer(resolve(store_folder.uri)):
        store_folder.fail(matching=writes, delay=0.3)
        while not any(re.search(writes, request) for request in store_folder.faults.requests()):
            pass  # until a renewal begins
    for thread in set(threading.enumerate()) - threads_before:
        thread.join(30)
    assert not store_folder.at("lock").exists()
