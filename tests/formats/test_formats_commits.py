"""Commits and manifests of datasets, and cleaning up after interrupted writers."""

from __future__ import annotations

import json

import pytest

from hindcast.errors import DataError, StorageError
from hindcast.formats.dataset_folder.commits import Commit, read_commits, remove_orphans, write_commit
from hindcast.formats.dataset_folder.manifest import Manifest, read_manifest, write_manifest
from hindcast.formats.entries import FileEntry, RowGroup
from hindcast.storage.location import Location, resolve


def make_file_entry(path: str = "000000-a1-000.parquet", checksum: str = "c0") -> FileEntry:
    groups = (RowGroup(rows=2, timesteps=7, bytes=100, lengths=(3, 4), continued=(1,)),)
    return FileEntry(path=path, rows=2, timesteps=7, bytes=90, checksum=checksum, row_groups=groups)


def make_commit(number: int, *files: FileEntry) -> Commit:
    return Commit(range=number, files=files, episodes=1, timesteps=7, first=5 * number)


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path, memory_path):
    return resolve(tmp_path / "d" if request.param == "local" else memory_path)


def test_read_commits_returns_commits_by_range(folder):
    assert read_commits(folder) == {}
    commits = [make_commit(i, make_file_entry(f"{i:06d}-a1-000.parquet")) for i in (11, 2, 0)]
    for commit in commits:
        write_commit(folder, commit)
    commits_read = read_commits(folder)
    assert list(commits_read) == [0, 2, 11]
    assert commits_read[11] == commits[0]
    assert commits_read[11].files[0].episodes == 1
    document = json.loads(folder.child("_hindcast/commits/000011.json").read_bytes())
    assert document["files"][0]["rowGroups"][0]["lengths"] == [3, 4]


def test_write_commit_twice_keeps_last_commit(folder):
    write_commit(folder, make_commit(3, make_file_entry("000003-a1-000.parquet")))
    write_commit(folder, make_commit(3, make_file_entry("000003-b2-000.parquet")))
    assert read_commits(folder)[3].files[0].path == "000003-b2-000.parquet"


def test_read_commits_names_damaged_commit(folder):
    write_commit(folder, make_commit(0))
    folder.child("_hindcast/commits/000001.json").write_bytes(b'{"range": 1, "fi')
    with pytest.raises(DataError, match=r"000001\.json cannot be read .* delete it and record again"):
        read_commits(folder)


def test_write_commit_on_full_disk_leaves_range_uncommitted(small_disk):
    folder = resolve(small_disk("size=64k"))
    write_commit(folder, make_commit(0))
    small_disk("remount,ro")
    with pytest.raises(StorageError, match=r"cannot write .*000001.json: the file system is read-only"):
        write_commit(folder, make_commit(1))
    assert list(read_commits(folder)) == [0]


def test_remove_orphans_deletes_only_orphans(folder):
    kept_names = ["000000-a1-000.parquet", "mine.parquet", "notes.txt", "000000-a1.parquet", ".mine.tmp"]
    orphans = [
        "000000-zz-000.parquet",
        "000012-0a1b2c3d-001.parquet",
        ".000001-a1-000.parquet.0123abcd.tmp",
        "_hindcast/.manifest.json.0123abcd.tmp",
        "_hindcast/commits/.000001.json.0123abcd.tmp",
    ]
    for name in [*kept_names, *orphans, "deep/000000-zz-000.parquet"]:
        folder.child(name).write_bytes(b"x")
    write_commit(folder, make_commit(0))
    remove_orphans(folder, [make_commit(0, make_file_entry(kept_names[0]))])
    remaining_names = {entry.relative_path for entry in folder.files(recursive=True)}
    assert remaining_names == {*kept_names, "deep/000000-zz-000.parquet", "_hindcast/commits/000000.json"}


def test_remove_orphans_in_missing_folder_does_nothing(folder):
    remove_orphans(folder, [])
    assert folder.list() == []


def test_manifest_round_trip(kit, folder):
    assert read_manifest(folder) is None
    manifest = Manifest(
        spec_hash="abc",
        environment={"id": "CartPole-v1"},
        seed=3,
        policy={"digest": "d1"},
        recorder="0.1.0",
        connectors={"filter": {"count": 3}},
        spec=kit.spec(kit.block()).to_json(),
        files=(make_file_entry(),),
    )
    write_manifest(folder, manifest)
    manifest_read = read_manifest(folder)
    assert manifest_read == manifest
    assert manifest_read is not None
    assert manifest_read.data_spec == kit.spec(kit.block())
    document = json.loads(folder.child("_hindcast/manifest.json").read_bytes())
    assert document["formatVersion"] == 2
    assert "files" not in document, "they are in the index"


def test_manifest_of_version_1_contains_the_files(kit, folder):
    manifest = Manifest(format_version=1, spec=kit.spec(kit.block()).to_json(), files=(make_file_entry(),))
    folder.child("_hindcast/manifest.json").write_bytes(manifest.model_dump_json(by_alias=True).encode())
    assert read_manifest(folder) == manifest


def test_manifest_is_whole_after_each_interruption(kit, folder, monkeypatch):
    """A writer that stops after any of its writes leaves the earlier dataset or the new one."""
    spec = kit.spec(kit.block()).to_json()
    earlier, later = (Manifest(spec=spec, files=(make_file_entry(f"{name}.parquet"),)) for name in "ab")
    write_manifest(folder, earlier)
    write_bytes = Location.write_bytes

    def stop(location: Location, data: bytes) -> None:
        if location.name == "manifest.json":
            raise StorageError("stopped")
        write_bytes(location, data)

    with monkeypatch.context() as patches, pytest.raises(StorageError):
        patches.setattr(Location, "write_bytes", stop)
        write_manifest(folder, later)
    assert read_manifest(folder) == earlier
    write_manifest(folder, later)
    assert read_manifest(folder) == later
    (index,) = (
        entry.location for entry in folder.files(recursive=True) if entry.location.name != "manifest.json"
    )
    index.write_bytes(index.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"index-\w+ is damaged: copy the dataset again"):
        read_manifest(folder)
    index.delete()
    with pytest.raises(DataError, match=r"index-\w+: it does not exist"):
        read_manifest(folder)


def test_digest_depends_on_contents_and_order_but_not_on_names(kit):
    def compute_digest(*files: FileEntry) -> str:
        return Manifest(spec=kit.spec(kit.block()).to_json(), files=files).digest

    first_entry, second_entry = make_file_entry("a", "c1"), make_file_entry("b", "c2")
    digest = compute_digest(first_entry, second_entry)
    assert digest == compute_digest(make_file_entry("x", "c1"), make_file_entry("y", "c2"))
    assert digest not in {compute_digest(second_entry, first_entry), compute_digest(first_entry)}
