"""Recording to a failing store, and training from it."""

from __future__ import annotations

import re
import threading
import time

import pytest

from hindcast import BCConfig
from hindcast.datasets.opening import open_dataset
from hindcast.errors import Interrupted, StorageError
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.storage.location import resolve
from object_store_servers import s3_client
from support import WALK, StopAfter, episode_hashes, leftovers, read_all, record, recording, train, training

SHORT_RECORDING = {"duration": {"episodes": 8}, "output": {"maxRowsPerFile": 4}}


@pytest.fixture(scope="module")
def short_recording(tmp_path_factory):
    """A recording of 8 episodes in two files; short, since clients wait for seconds after each failure."""
    folder = tmp_path_factory.mktemp("few")
    record(recording(folder, **SHORT_RECORDING))
    return folder


@pytest.mark.parametrize("fault", [{"status": 503}, {"cut": 100, "matching": "^GET"}], ids=["503", "cut"])
def test_recording_to_a_failing_store_equals_the_local_one(store_folder, short_recording, fault):
    store_folder.fail(every=3, **fault)
    record(recording(store_folder.uri, **SHORT_RECORDING))
    assert episode_hashes(read_all(store_folder.uri)) == episode_hashes(read_all(short_recording))
    assert leftovers(store_folder.uri) == []


def test_recording_to_a_slow_store_equals_the_local_one(store_folder, short_recording):
    store_folder.fail(delay=0.1)
    record(recording(store_folder.uri, **SHORT_RECORDING))
    assert episode_hashes(read_all(store_folder.uri)) == episode_hashes(read_all(short_recording))


def test_recording_with_denied_access_resumes_later(store_folder, walks):
    resource = recording(store_folder.uri, output={"maxRowsPerFile": 8})
    store_folder.fail(matching=r"^(PUT|POST) .*\.parquet", status=403, code="AccessDenied")
    with pytest.raises(StorageError, match=r"cannot write \S+\.parquet\S*: access is denied") as error:
        record(resource)
    assert error.value.exit_code == 5
    store_folder.faults.set()
    assert read_commits(resolve(store_folder.uri)) == {}
    record(resource)
    assert episode_hashes(read_all(store_folder.uri)) == episode_hashes(read_all(walks))


def test_recording_resumes_after_store_is_killed_in_an_upload(store_folder, walks, monkeypatch):
    resource = recording(store_folder.uri, output={"maxRowsPerFile": 8})
    store_folder.fail(matching=r"^(PUT|POST) .*\.parquet", delay=0.3)

    def kill_server_in_second_range() -> None:
        upload = re.compile(r"^(PUT|POST) .*000001-.*\.parquet")
        while not any(upload.search(request) for request in store_folder.faults.requests()):
            time.sleep(0.02)
        store_folder.server.kill()

    killer = threading.Thread(target=kill_server_in_second_range)
    killer.start()
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "3")
    with pytest.raises(StorageError, match=r"cannot \w+ \S+://"):
        record(resource)
    killer.join()
    store_folder.server.start()
    store_folder.faults.set()
    monkeypatch.delenv("HINDCAST_STORAGE_TIMEOUT")
    num_episodes = sum(commit.episodes for commit in read_commits(resolve(store_folder.uri)).values())
    assert num_episodes < 40
    # A killed Azurite loses what it has not written to disk yet.
    if not store_folder.uri.startswith("abfss"):
        assert num_episodes > 0
    record(resource)
    assert episode_hashes(read_all(store_folder.uri)) == episode_hashes(read_all(walks))
    assert leftovers(store_folder.uri) == []


def test_globs_and_folders_are_opened(s3):
    for seed, name in ((1, "a"), (2, "b")):
        record(recording(f"{s3.uri}/{name}", seed=seed, output={"maxRowsPerFile": 8}))
    assert open_dataset(s3.uri).num_episodes == 80
    assert open_dataset(f"{s3.uri}/[ab]").num_episodes == 80
    assert open_dataset(f"{s3.uri}/a/*.parquet").num_episodes == 40
    assert open_dataset(f"{s3.uri}/a").num_episodes == 40


@pytest.mark.parametrize("fault", [{"status": 503}, {"cut": 100, "matching": "^GET"}], ids=["503", "cut"])
def test_training_writes_its_run_to_the_store(store_folder, fault):
    record(recording(f"{store_folder.uri}/data"))
    store_folder.fail(every=3, **fault)
    train(training(f"{store_folder.uri}/runs", f"{store_folder.uri}/data"))
    run_folder = store_folder.at("runs/test/r1")
    files = {entry.relative_path for entry in run_folder.files(recursive=True)}
    assert {"results.jsonl", "success.json"} <= files


def test_training_resumes_from_its_checkpoint_in_the_store(store_folder, walks, reporter):
    resource = training(store_folder.uri, walks, checkpoint={"every": 1})
    with pytest.raises(Interrupted):
        train(resource, StopAfter(3))
    train(resource, reporter=reporter)
    assert any("resum" in note for note in reporter.notes)


def test_training_reports_a_dead_store_and_resumes_later(store_folder, tmp_path, monkeypatch):
    record(recording(f"{store_folder.uri}/data"))
    resource = training(tmp_path / "runs", f"{store_folder.uri}/data", pipeline={"residency": "Streaming"})
    store_folder.server.end()
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "2")
    with pytest.raises(StorageError, match=r"cannot \w+( \w+)? \S+://"):
        train(resource)
    store_folder.server.start()
    monkeypatch.delenv("HINDCAST_STORAGE_TIMEOUT")
    assert train(resource).state == "Succeeded"


def test_dataset_is_opened_through_a_file_system_object(s3):
    record(recording(f"{s3.uri}/data"))
    client = s3_client("reader", s3.faults.url[7:])
    assert open_dataset(f"{s3.uri}/data".removeprefix("s3://"), client).num_episodes == 40


@pytest.mark.timeout(120)
def test_config_records_and_trains_through_a_file_system_object(s3, monkeypatch):
    client = s3_client("writer", s3.faults.url[7:])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")  # a URI would be opened with these keys
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "reader-secret")
    folder = s3.uri.removeprefix("s3://")
    config = BCConfig().environment(WALK["id"]).rl_module(model_config={"fcnet_hiddens": [8]})
    recorder = config.copy().evaluation(evaluation_duration=4)
    with recorder.offline_data(output=folder, output_filesystem=client).build_algo() as algo:
        algo.evaluate()
    with config.offline_data(input_=folder, input_filesystem=client).build_algo() as algo:
        assert algo.train()["num_env_steps_trained_lifetime"] > 0
