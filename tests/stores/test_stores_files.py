"""Files in S3, Google Cloud Storage and Azure, with and without failures."""

from __future__ import annotations

import pickle
import re
import threading
import time
import urllib.request

import numpy as np
import pytest
from obstore.fsspec import FsspecStore
from obstore.store import S3Store

from hindcast.errors import DataError, StorageError, StorageUnavailable
from hindcast.storage.atomic import AtomicFile
from hindcast.storage.location import resolve
from object_store_servers import s3_client

BIG_CONTENT = np.random.default_rng(0).bytes(12 << 20)


def test_written_file_is_read_listed_and_deleted(store_folder):
    folder = resolve(store_folder.uri)
    assert not folder.exists()
    folder.child("a", "one.bin").write_bytes(b"1")
    folder.child("a", "big.bin").write_bytes(BIG_CONTENT)
    assert folder.child("a", "one.bin").read_bytes() == b"1"
    assert store_folder.at("a", "big.bin").read_bytes() == BIG_CONTENT
    files = [(entry.relative_path, entry.size) for entry in folder.files(recursive=True)]
    assert files == [("a/big.bin", len(BIG_CONTENT)), ("a/one.bin", 1)]
    assert folder.child("a").is_folder()
    folder.child("a", "one.bin").write_bytes(b"other")
    assert folder.child("a", "one.bin").read_bytes() == b"other"
    folder.child("a", "one.bin").delete()
    assert [entry.relative_path for entry in folder.files(recursive=True)] == ["a/big.bin"]
    folder.delete()
    folder.delete()
    assert list(folder.files(recursive=True)) == []


def test_folders_are_listed_with_the_files(store_folder):
    folder = resolve(store_folder.uri)
    folder.child("a/b/c").write_bytes(b"1")
    folder.child("d").write_bytes(b"22")
    assert [(entry.relative_path, entry.is_file) for entry in folder.list()] == [("a", False), ("d", True)]
    all_entries = [(entry.relative_path, entry.is_file) for entry in folder.list(recursive=True)]
    assert all_entries == [("a", False), ("a/b", False), ("a/b/c", True), ("d", True)]


def test_file_is_read_at_any_offset(store_folder):
    location = store_folder.at("big.bin")
    location.write_bytes(BIG_CONTENT)
    with location.open() as file:
        assert file.size() == len(BIG_CONTENT)
        assert file.read_at(1000, 5 << 20) == BIG_CONTENT[5 << 20 :][:1000]
        file.seek(-10, 2)
        assert file.read() == BIG_CONTENT[-10:]


def test_pickled_location_contains_no_credentials(store_folder):
    location = store_folder.at("x")
    location.write_bytes(b"x")
    pickle_bytes = pickle.dumps(location)
    assert b"secret" not in pickle_bytes
    assert b"AccountKey" not in pickle_bytes
    assert pickle.loads(pickle_bytes).read_bytes() == b"x"


def test_exclusive_create_does_not_replace_existing_file(store_folder):
    assert store_folder.at("x").create_exclusive(b"first")
    assert not store_folder.at("x").create_exclusive(b"second")
    assert store_folder.at("x").read_bytes() == b"first"


def test_names_may_contain_characters_that_uris_may_not(s3):
    for name in ("a b", "50%", "what?", "#1"):
        s3.at(name).write_bytes(name.encode())
        assert s3.at(name).read_bytes() == name.encode()


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"cut": -1}, {"cut": 100, "matching": "^GET"}], ids=["503", "cut", "cut short"]
)
def test_failures_of_every_third_request_lose_nothing(store_folder, fault):
    store_folder.fail(every=3, **fault)
    for i in range(3):
        store_folder.at(f"{i}").write_bytes(b"%d" % i)
    store_folder.at("big").write_bytes(BIG_CONTENT)
    assert store_folder.at("big").read_bytes() == BIG_CONTENT
    assert [entry.relative_path for entry in resolve(store_folder.uri).files()] == ["0", "1", "2", "big"]
    assert store_folder.at("1").read_bytes() == b"1"


@pytest.mark.timeout(60)
def test_failing_store_is_reported_and_recovering_store_is_retried(store_folder, monkeypatch):
    store_folder.at("x").write_bytes(b"x")
    store_folder.fail(status=503, times=3)
    assert store_folder.at("x").read_bytes() == b"x"
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "2")
    store_folder.fail(status=503)
    message = r"cannot read \S+/x: the store is (busy|too slow).*: try again"
    with pytest.raises(StorageUnavailable, match=message):
        store_folder.at("x").read_bytes()


def test_file_is_read_by_few_requests(store_folder):
    store_folder.at("big").write_bytes(BIG_CONTENT)
    store_folder.faults.set()
    assert store_folder.at("big").read_bytes() == BIG_CONTENT
    assert len(store_folder.faults.requests()) <= 5


def test_aborted_file_is_never_sent(store_folder):
    store_folder.at("x").write_bytes(b"old")
    store_folder.faults.set()
    with pytest.raises(ZeroDivisionError), AtomicFile(store_folder.at("x")) as file:
        file.write(BIG_CONTENT)
        raise ZeroDivisionError
    requests = store_folder.faults.requests()
    assert not any(request.startswith(("PUT", "POST", "DELETE")) for request in requests)
    assert store_folder.at("x").read_bytes() == b"old"


def test_failed_upload_leaves_the_old_file(store_folder, monkeypatch):
    store_folder.at("x").write_bytes(b"old")
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "2")
    store_folder.fail(matching="^(PUT|POST)", status=403, code="AccessDenied")
    with pytest.raises(StorageError, match=r"cannot write \S+/x: access is denied"):
        store_folder.at("x").write_bytes(BIG_CONTENT)
    store_folder.faults.set()
    assert store_folder.at("x").read_bytes() == b"old"
    assert [entry.relative_path for entry in resolve(store_folder.uri).files()] == ["x"]


@pytest.mark.parametrize(
    ("store_name", "part"), [("s3", "partNumber=2"), ("gcs", "partNumber=2"), ("azure", "comp=block(&|$)")]
)
def test_failed_part_of_an_upload_leaves_no_object(request, monkeypatch, store_name, part):
    store_folder = request.getfixturevalue(store_name)
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "2")
    store_folder.fail(matching=part, status=503)
    with pytest.raises(StorageUnavailable, match=r"cannot write \S+/x: the store is busy or failing"):
        store_folder.at("x").write_bytes(BIG_CONTENT)
    store_folder.faults.set()
    assert not store_folder.at("x").exists()


def test_failed_upload_leaves_no_parts(s3, monkeypatch):
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "2")
    folder = resolve(f"s3://public/{s3.uri.rpartition('/')[2]}")
    s3.fail(matching="partNumber=2", status=503)
    with pytest.raises(StorageUnavailable, match="the store is busy or failing"):
        folder.child("x").write_bytes(BIG_CONTENT)
    s3.faults.set()
    assert list(folder.files()) == []
    with urllib.request.urlopen(f"{s3.faults.url}/public?uploads") as response:
        assert f"{folder.name}/x".encode() not in response.read()
    folder.child("x").write_bytes(BIG_CONTENT)
    assert folder.child("x").read_bytes() == BIG_CONTENT


def test_upload_with_a_lost_final_answer_is_not_repeated(s3):
    s3.fail(matching="^POST .*uploadId", times=1, status=503)
    s3.at("x").write_bytes(BIG_CONTENT)
    assert sum("partNumber=1" in request for request in s3.faults.requests()) == 1
    assert s3.at("x").read_bytes() == BIG_CONTENT


def test_denied_access_is_reported_immediately(store_folder):
    store_folder.at("x").write_bytes(b"x")
    store_folder.fail(status=403, code="AccessDenied")
    earlier_requests = store_folder.faults.requests()
    with pytest.raises(StorageError, match=r"access is denied: check the credentials"):
        store_folder.at("x").read_bytes()
    with pytest.raises(StorageError, match=r"cannot list \S+: access is denied"):
        resolve(store_folder.uri).list()
    assert len(store_folder.faults.requests()) - len(earlier_requests) < 6


def test_missing_file_is_reported_immediately(store_folder):
    with pytest.raises(DataError, match=r"cannot read \S+/nothing: it does not exist"):
        store_folder.at("nothing").read_bytes()


@pytest.mark.parametrize(
    ("store_name", "uri"),
    [("s3", "s3://no-such-bucket/x"), ("azure", "abfss://no-such-bucket@devstoreaccount1/x")],
)
def test_writing_to_a_missing_bucket_is_reported(request, store_name, uri):
    request.getfixturevalue(store_name)
    with pytest.raises(StorageError, match=r"cannot write \S+no-such-bucket\S*/x: there is no such bucket"):
        resolve(uri).write_bytes(b"x")


def test_store_that_does_not_answer_in_time_is_reported(store_folder, monkeypatch):
    store_folder.at("x").write_bytes(b"x")
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "1")
    store_folder.fail(delay=30.0)
    with pytest.raises(StorageUnavailable, match="the store is too slow: try again later"):
        store_folder.at("x").read_bytes()


def test_unreachable_store_is_reported(monkeypatch):
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(StorageUnavailable, match=r"cannot read s3://b/x: nothing answers at the endpoint"):
        resolve("s3://b/x").read_bytes()


def test_wrong_access_and_secret_keys_are_told_apart(s3, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageError, match="the secret key does not match the account"):
        resolve(s3.uri).list()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(StorageError, match="the store does not know the access key"):
        resolve(s3.uri).list()


def test_read_only_keys_cannot_write(s3, monkeypatch):
    s3.at("x").write_bytes(b"x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "reader-secret")
    assert s3.at("x").read_bytes() == b"x"
    with pytest.raises(StorageError, match=rf"cannot write {s3.uri}/y: access is denied"):
        s3.at("y").write_bytes(b"y")


def test_public_bucket_requires_no_keys(s3, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert resolve("s3://anonymous@public/.greeting").read_bytes() == b"hello"


def make_pyarrow_client(s3):
    return s3_client("writer", s3.faults.url[7:]), s3.uri.removeprefix("s3://")


def make_options(s3):
    """Return the options of an obstore client."""
    keys = {"access_key_id": "writer", "secret_access_key": "writer-secret", "endpoint": s3.faults.url}
    return {"config": keys, "client_options": {"allow_http": True}}


def make_fsspec_client(s3):
    return FsspecStore("s3", **make_options(s3)), s3.uri.removeprefix("s3://")


def make_obstore_client(s3):
    return S3Store("tests", **make_options(s3)), s3.uri.removeprefix("s3://tests/")


@pytest.mark.parametrize("make_client", [make_pyarrow_client, make_fsspec_client, make_obstore_client])
def test_file_system_object_reads_and_writes(s3, make_client):
    filesystem, path = make_client(s3)
    folder = resolve(path, filesystem)
    folder.child("sub", "0").write_bytes(b"0")
    folder.child("big").write_bytes(BIG_CONTENT)
    assert pickle.loads(pickle.dumps(folder)).child("big").read_bytes() == BIG_CONTENT
    assert not folder.child("big").create_exclusive(b"other")
    assert [entry.relative_path for entry in folder.files(recursive=True)] == ["big", "sub/0"]
    folder.child("big").delete()
    assert resolve(s3.uri).child("sub/0").read_bytes() == b"0"
    folder.delete()
    assert list(resolve(s3.uri).files(recursive=True)) == []


@pytest.mark.parametrize(
    ("store_name", "part"), [("s3", "partNumber"), ("gcs", "partNumber"), ("azure", "comp=block(&|$)")]
)
def test_upload_survives_a_killed_and_restarted_server(request, monkeypatch, store_name, part):
    store_folder = request.getfixturevalue(store_name)
    store_folder.fail(matching=part, delay=0.5)
    writer = threading.Thread(target=lambda: store_folder.at("x").write_bytes(BIG_CONTENT))
    writer.start()
    while not any(re.search(part, request) for request in store_folder.faults.requests()):
        time.sleep(0.02)
    store_folder.server.kill()
    time.sleep(1)
    store_folder.server.start()
    store_folder.faults.set()
    writer.join()
    assert store_folder.at("x").read_bytes() == BIG_CONTENT
