"""Recording onto a store that fails, and training from it."""

from __future__ import annotations

import threading
import time

import pyarrow.fs as pafs
import pytest

from hindcast.errors import StorageError
from hindcast.store.commits import read_commits
from hindcast.store.dataset import open_dataset
from hindcast.store.filesystem import resolve
from support import episode_hashes, leftovers, read_all, record, recording, train, training


def test_a_recording_onto_a_store_that_fails_is_the_local_one(s3, walks):
    s3.fail(every=3, status=503)
    record(recording(s3.uri, output={"maxRowsPerFile": 8}))
    assert episode_hashes(read_all(s3.uri)) == episode_hashes(read_all(walks))
    assert leftovers(s3.uri) == []


def test_a_recording_that_is_denied_counts_nothing_and_goes_on_later(s3, walks):
    resource = recording(s3.uri, output={"maxRowsPerFile": 8})
    s3.fail(matching=r"^(PUT|POST) .*\.parquet", status=403, code="AccessDenied")
    with pytest.raises(StorageError, match=r"cannot write s3://\S+\.parquet: access is denied") as caught:
        record(resource)
    assert caught.value.exit_code == 5
    s3.faults.begin()
    assert read_commits(resolve(s3.uri)) == {}
    record(resource)
    assert episode_hashes(read_all(s3.uri)) == episode_hashes(read_all(walks))


def test_a_recording_whose_store_dies_in_an_upload_goes_on_when_it_is_back(s3, walks, monkeypatch):
    resource = recording(s3.uri, output={"maxRowsPerFile": 8})
    s3.fail(matching=r"^(PUT|POST) .*\.parquet", delay=0.3)

    def kill_in_the_third_upload() -> None:
        while sum(".parquet" in asked and "PUT" in asked for asked in s3.faults.asked()) < 3:
            time.sleep(0.02)
        s3.server.kill()

    killing = threading.Thread(target=kill_in_the_third_upload)
    killing.start()
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "3")
    with pytest.raises(StorageError, match=r"cannot \w+ s3://"):
        record(resource)
    killing.join()
    s3.server.start()
    s3.faults.begin()
    monkeypatch.delenv("HINDCAST_STORAGE_TIMEOUT")
    counted = sum(commit.episodes for commit in read_commits(resolve(s3.uri)).values())
    assert 0 < counted < 40
    record(resource)
    assert episode_hashes(read_all(s3.uri)) == episode_hashes(read_all(walks))
    assert leftovers(s3.uri) == []


def test_globs_and_folders_are_found(s3, walks):
    for name in ("a", "b"):
        record(recording(f"{s3.uri}/{name}", seed=1 if name == "a" else 2, output={"maxRowsPerFile": 8}))
    assert open_dataset(s3.uri).num_episodes == 80
    assert open_dataset(f"{s3.uri}/[ab]").num_episodes == 80
    assert open_dataset(f"{s3.uri}/a/*.parquet").num_episodes == 40
    assert open_dataset(f"{s3.uri}/a").num_episodes == 40


def test_training_reads_and_keeps_its_run_in_the_store(s3, walks):
    record(recording(f"{s3.uri}/data"))
    s3.fail(every=3, status=503)
    train(training(f"{s3.uri}/runs", f"{s3.uri}/data"))
    files = {entry.relative for entry in resolve(f"{s3.uri}/runs/test/r1").files(recursive=True)}
    assert {"results.jsonl", "success.json"} <= files


def test_a_dataset_through_a_file_system_object(s3):
    record(recording(f"{s3.uri}/data"))
    client = pafs.S3FileSystem(
        access_key="reader",
        secret_key="reader-secret",
        endpoint_override=s3.faults.url[7:],
        scheme="http",
        region="us-east-1",
    )
    assert open_dataset(f"{s3.uri}/data".removeprefix("s3://"), client).num_episodes == 40
