"""`Location` on local disks and in file systems of fsspec and pyarrow."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import fsspec.implementations.memory
import pyarrow.fs as pafs
import pytest
from obstore.store import MemoryStore, S3Store

from hindcast.errors import DataError, OutputConflict, StorageError, StorageUnavailable
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Location, missing_error, resolve
from hindcast.storage.user_files import UserFiles


@pytest.fixture(params=["path", "file", "memory"])
def folder(request, tmp_path, memory_path):
    """Path or URI of a folder, on each kind of storage."""
    folders = {"path": str(tmp_path / "data"), "file": f"file://{tmp_path}/data", "memory": memory_path}
    return folders[request.param]


def test_written_file_is_read_listed_and_deleted(folder):
    location = resolve(folder)
    assert not location.exists()
    assert location.list() == []
    location.child("a", "one.bin").write_bytes(b"1")
    location.child("a/two.bin").write_bytes(b"22")
    assert resolve(f"{folder}/a/two.bin").read_bytes() == b"22"
    entries = [(entry.relative_path, entry.size, entry.is_file) for entry in location.list(recursive=True)]
    assert entries == [("a", 0, False), ("a/one.bin", 1, True), ("a/two.bin", 2, True)]
    assert [entry.relative_path for entry in location.list()] == ["a"]
    assert [entry.relative_path for entry in location.files()] == []
    assert location.child("a").is_folder()
    location.child("a/one.bin").delete()
    assert [entry.relative_path for entry in location.child("a").list()] == ["two.bin"]
    location.delete()
    location.delete()
    assert not location.exists()


def test_folder_deleted_while_listed_is_tolerated(tmp_path):
    folder, stop_event = tmp_path / "data", threading.Event()

    def create_and_delete_folder() -> None:
        while not stop_event.is_set():
            (folder / "below").mkdir(parents=True)
            shutil.rmtree(folder)

    thread = threading.Thread(target=create_and_delete_folder)
    thread.start()
    try:
        for _ in range(10_000):
            assert {entry.relative_path for entry in resolve(str(folder)).list()} <= {"below"}
    finally:
        stop_event.set()
        thread.join()


def test_write_replaces_and_create_does_not(folder):
    location = resolve(folder).child("x")
    assert location.create_exclusive(b"first")
    assert not location.create_exclusive(b"second")
    assert location.read_bytes() == b"first"
    location.write_bytes(b"third")
    assert location.read_bytes() == b"third"


def test_uri_stays_as_the_user_wrote_it(folder):
    location = resolve(folder)
    assert str(location) == folder
    assert str(location.child("a", "b.parquet")) == f"{folder}/a/b.parquet"
    assert str(location.child("a", "b.parquet").parent()) == f"{folder}/a"
    assert location.child("a/b.parquet").name == "b.parquet"


def test_mkdirs_accepts_existing_folders(folder):
    location = resolve(folder).child("a/b")
    location.mkdirs()
    location.mkdirs()
    assert location.is_folder()


def test_relative_paths_start_at_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    resolve("runs/../runs/x").write_bytes(b"x")
    assert (tmp_path / "runs" / "x").read_bytes() == b"x"
    resolve(Path("y")).write_bytes(b"y")
    assert (tmp_path / "y").read_bytes() == b"y"


def test_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/x").path == f"{tmp_path}/x"


@pytest.mark.parametrize(
    ("filesystem", "path"),
    [
        (lambda root: fsspec.filesystem("file"), "{root}/x"),
        (lambda root: fsspec.filesystem("file"), "file://{root}/x"),
        (lambda root: pafs.LocalFileSystem(), "{root}/x"),
        (lambda root: pafs.LocalFileSystem(), "file://{root}/x"),
        (lambda root: pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem()), "x"),
    ],
)
def test_path_in_file_system_object_is_resolved(tmp_path, filesystem, path):
    location = resolve(path.format(root=tmp_path), filesystem(tmp_path))
    location.write_bytes(b"x")
    assert (tmp_path / "x").read_bytes() == b"x"
    assert location.is_local


def test_path_in_fsspec_object_may_have_its_scheme(memory_path):
    filesystem = fsspec.filesystem("memory")
    resolve("run-tests/x", filesystem).write_bytes(b"x")
    assert resolve("memory://run-tests/x", filesystem).read_bytes() == b"x"
    assert resolve("memory://run-tests/x").read_bytes() == b"x"


def test_location_can_be_pickled(tmp_path):
    location = resolve(tmp_path / "x")
    location.write_bytes(b"x")
    assert pickle.loads(pickle.dumps(location)).read_bytes() == b"x"


def test_credentials_in_a_uri_are_refused_and_not_repeated():
    with pytest.raises(StorageError, match="contains credentials") as caught:
        resolve("s3://AKIA:topsecret@bucket/data")
    assert "topsecret" not in str(caught.value)
    assert "AKIA" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "suggestion"),
    [
        ("hdfs:/archive/cartpole", "hdfs://host:port/archive/cartpole"),
        (Path("s3://bucket/data"), "s3://bucket/data"),
        ("file:/data", "file:///data"),
        ("foo:/data", "foo://data"),
    ],
)
def test_single_slash_after_the_scheme_is_refused(uri, suggestion):
    with pytest.raises(StorageError) as caught:
        resolve(uri)
    advice = f"write {suggestion}, or ./{uri} for a local folder with that name"
    assert str(caught.value) == f"{uri} is neither a URI nor a plain path: {advice}"
    assert resolve(f"./{uri}").is_local


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("foo://bucket/data", "foo://.*s3://"),
        ("file://relative/x", "cannot use the URI file://relative/x"),
        ("hdfs://127.0.0.1:1/a", "hdfs://127.0.0.1:1/a: .*JAVA_HOME.*webhdfs://"),
        ("ftp://127.0.0.1:1/a", "cannot use the URI ftp://127.0.0.1:1/a: .*nothing answers"),
        ("reference://a", "cannot use the URI reference://a: .*argument"),
    ],
)
def test_uri_that_cannot_be_used_is_reported_in_one_sentence(uri, message):
    with pytest.raises(StorageError, match=message):
        resolve(uri)


def test_object_that_is_not_a_file_system_is_refused():
    with pytest.raises(StorageError, match="filesystem is a dict"):
        resolve("x", {})


def test_reading_a_missing_file_is_reported(folder):
    with pytest.raises(DataError, match=r"cannot read .*/nothing: it does not exist"):
        resolve(folder).child("nothing").read_bytes()


def test_file_in_place_of_a_folder_is_reported(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot write .*file/x: a file is in the way"):
        resolve(tmp_path / "file" / "x").write_bytes(b"x")
    with pytest.raises(StorageError, match=r"cannot make the folder .*file"):
        resolve(tmp_path / "file").mkdirs()


def test_location_that_accepts_no_files_is_reported():
    with pytest.raises(StorageError, match=r"cannot write /proc/hindcast/x"):
        resolve("/proc/hindcast/x").write_bytes(b"x")


def test_full_disk_is_reported_and_leaves_no_file(kit, small_disk):
    folder = small_disk("size=64k")
    resolve(folder / "old").write_bytes(b"kept")
    with pytest.raises(StorageError, match=r"cannot write .*/new: the disk is full"):
        resolve(folder / "new").write_bytes(bytes(1 << 20))
    with pytest.raises(StorageError, match=r"cannot write .*/old: the disk is full"):
        resolve(folder / "old").write_bytes(bytes(1 << 20))
    assert kit.file_names(folder) == ["old"]
    assert (folder / "old").read_bytes() == b"kept"


def test_read_only_file_system_is_reported(small_disk):
    folder = small_disk("size=64k")
    resolve(folder / "old").write_bytes(b"kept")
    small_disk("remount,ro")
    for change in (
        lambda: resolve(folder / "new").write_bytes(b"x"),
        lambda: resolve(folder / "new").create_exclusive(b"x"),
        lambda: resolve(folder / "old").delete(),
        lambda: resolve(folder / "sub").mkdirs(),
    ):
        with pytest.raises(StorageError, match="read-only"):
            change()
    assert resolve(folder / "old").read_bytes() == b"kept"


def test_failing_fsync_leaves_the_old_content_and_no_temporary_file(tmp_path, monkeypatch):
    location = resolve(tmp_path / "x")
    location.write_bytes(b"old")

    def raise_disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(StorageError, match="the disk is full"):
        location.write_bytes(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert location.read_bytes() == b"old"


def test_one_of_many_creators_wins(kit, tmp_path):
    location = resolve(tmp_path / "lock")
    with ThreadPoolExecutor(8) as pool:
        has_created = list(pool.map(lambda i: location.create_exclusive(b"%d" % i), range(32)))
    assert sum(has_created) == 1
    assert location.read_bytes() == b"%d" % has_created.index(True)
    assert kit.file_names(tmp_path) == ["lock"]


@pytest.mark.parametrize(
    ("error_text", "error_class", "message"),
    [
        ("403 the account may not write\nmore lines", StorageError, "403 the account may not write"),
        ("status 503: SlowDown", StorageUnavailable, "the store is busy or failing: try again later"),
    ],
)
def test_exception_of_a_foreign_driver_becomes_one_sentence(
    memory_path, monkeypatch, error_text, error_class, message
):
    class CloudError(Exception):
        pass

    def refuse(*args, **kwargs):
        raise CloudError(error_text)

    monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, "_open", refuse)
    with pytest.raises(StorageError) as caught:
        resolve(memory_path).write_bytes(b"x")
    assert type(caught.value) is error_class
    assert str(caught.value) == f"cannot write {memory_path}: {message}"


def test_workers_check_the_lease_before_writing(memory_path):
    folder = resolve(memory_path)
    with sole_writer(folder) as guard:
        unpickled_folder = pickle.loads(pickle.dumps(folder.with_guard(guard)))
        unpickled_folder.child("file").write_bytes(b"1")
        folder.child("lock").delete()
        with pytest.raises(OutputConflict, match="another process has begun to write"):
            unpickled_folder.child("file").write_bytes(b"2")


def test_obstore_buckets_have_different_roots():
    keys = {"access_key_id": "a", "secret_access_key": "b"}
    roots = {resolve("x", S3Store(name, config=keys)).backend.root for name in ("one", "other")}
    assert len(roots | {resolve("x", MemoryStore()).backend.root}) == 3


def test_folders_of_pyarrows_google_store_follow_from_file_names():
    """pyarrow's client lists a folder only if an object represents it."""
    sizes_by_path = {"bucket/data/a/b/1": 1, "bucket/data/2": 2}

    class FakeGoogleFileSystem:
        type_name = "gcs"

        def get_file_info(self, selector):
            assert selector.recursive
            file = pafs.FileType.File
            return [pafs.FileInfo(path, file, size=size) for path, size in sizes_by_path.items()]

    folder = Location(UserFiles(FakeGoogleFileSystem(), "gs://"), "bucket/data", "gs://bucket/data")
    assert [(entry.relative_path, entry.is_file) for entry in folder.list()] == [("2", True), ("a", False)]
    assert [entry.relative_path for entry in folder.list(recursive=True)] == ["2", "a", "a/b", "a/b/1"]


def test_missing_path_suggests_a_neighbour_of_similar_name(tmp_path):
    (tmp_path / "visits.parquet").touch()
    assert str(missing_error(resolve(tmp_path / "visit.parquet"))).endswith(
        "visit.parquet does not exist; did you mean 'visits.parquet'?"
    )
    for path in (tmp_path / "other", tmp_path / "no-folder" / "visit.parquet"):
        assert str(missing_error(resolve(path))) == f"{path} does not exist: check the path"
