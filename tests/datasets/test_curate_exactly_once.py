"""Interrupted conversions resume exactly, and foreign folders are never touched."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from curate_kit import make_block, make_interrupting_hooks, write_block

from episode_kit import read_block
from hindcast.datasets import target as target_module
from hindcast.datasets.curate import writing
from hindcast.datasets.curate.operations import convert_data, split_data
from hindcast.datasets.curate.writing import write
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.merging import merge
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.errors import DataError, Interrupted, OutputConflict, SpecError, StorageError, WorkerLost
from hindcast.storage.location import resolve
from hindcast.worker_processes import map_unordered
from support import episode_hashes, leftovers, read_all

CONVERT_SCRIPT = """
import os, signal, sys
from hindcast.datasets.curate import writing
from hindcast.datasets.target import Target
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.curate.writing import write
from hindcast.datasets.merging import merge
from hindcast.datasets.opening import open_dataset
from hindcast.storage.location import resolve

out, num_checks, *parts = sys.argv[1:]
remaining_checks = int(num_checks)
writing._MIN_RANGE_BYTES = 1

def check():
    global remaining_checks
    remaining_checks -= 1
    if remaining_checks == 0:
        os.kill(os.getpid(), signal.SIGKILL)

target = Target(resolve(out), "Columns", file_bytes=300)
write(merge([open_dataset(part) for part in parts]), target, hooks=Hooks(check=check))
"""


@pytest.mark.faults
@pytest.mark.usefixtures("range_per_unit")
# Kills in the first range, in the third range, and while the result is read back.
@pytest.mark.parametrize("num_checks", [2, 6, 11])
def test_conversion_after_kill_resumes_to_the_same_result(
    tmp_path, make_folders, twenty_episodes, num_checks, warm
):
    out = tmp_path / "out"
    parts = [str(tmp_path / f"part{i}") for i in range(5)]
    command = [str(warm.folder / "python"), "-c", CONVERT_SCRIPT, str(out), str(num_checks), *parts]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    result = write(twenty_episodes, Target(resolve(out), "Columns", file_bytes=300))
    assert result.timesteps == twenty_episodes.num_steps
    assert episode_hashes(read_all(out)) == episode_hashes(read_block(twenty_episodes))
    assert leftovers(out) == []


@pytest.mark.usefixtures("range_per_unit")
def test_conversion_interrupted_keeps_complete_ranges(tmp_path, twenty_episodes):
    target, stages = Target(resolve(tmp_path / "out"), file_bytes=300), []
    with pytest.raises(Interrupted):
        write(twenty_episodes, target, hooks=make_interrupting_hooks(5))
    hooks = Hooks(progress=lambda stage, done, total: stages.append((stage, done)))
    assert write(twenty_episodes, target, hooks=hooks).state == "Succeeded"
    assert stages[0][0] == "Writing"
    assert 0 < stages[0][1] < twenty_episodes.num_steps
    assert episode_hashes(read_all(tmp_path / "out")) == episode_hashes(read_block(twenty_episodes))
    assert write(twenty_episodes, target).state == "AlreadyFinished"


@pytest.mark.slow
@pytest.mark.usefixtures("range_per_unit")
def test_conversion_with_workers_writes_the_same_files(tmp_path, twenty_episodes, monkeypatch):
    alone, together = (
        Target(resolve(tmp_path / name), "MessagePack", file_bytes=300) for name in ("alone", "together")
    )
    local_result = write(twenty_episodes, alone)
    monkeypatch.setattr(writing, "choose_num_workers", lambda items, nbytes: 2)
    parallel_result = write(twenty_episodes, together)
    assert parallel_result.checksum == local_result.checksum
    assert open_dataset(tmp_path / "together").digest == open_dataset(tmp_path / "alone").digest


def _kill_process(context: int, item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return context + item


@pytest.mark.slow
def test_killed_worker_raises_worker_lost():
    with pytest.raises(WorkerLost, match="run the command again"):
        list(map_unordered(_kill_process, 0, [1, 2, 3], 2, lambda: None))


def test_changed_file_is_named_when_verified(tmp_path, twenty_episodes):
    target = Target(resolve(tmp_path / "out"))
    write(twenty_episodes, target)
    (file,) = (tmp_path / "out").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match=f"{file} was changed .*--replace"):
        write(twenty_episodes, target)
    assert file.exists()


@pytest.mark.parametrize("file_format", ["JSON", "CSV", "SampleBatch"])
def test_changed_text_file_is_named_when_verified(tmp_path, twenty_episodes, file_format):
    target = Target(resolve(tmp_path / "out"), file_format)
    write(twenty_episodes, target)
    (file,) = (path for path in (tmp_path / "out").iterdir() if path.is_file())
    text = file.read_text()
    file.write_text(text.replace("e1", "e9", 1))
    with pytest.raises(DataError, match=f"{file} was changed"):
        write(twenty_episodes, target)


def test_lossy_format_is_refused_and_its_files_deleted(tmp_path, twenty_episodes, monkeypatch):
    class WithoutTerminations(target_module.BlockWriter):
        def write(self, block):
            super().write(replace(block, terminated=block.terminated & False))

    monkeypatch.setattr(target_module, "BlockWriter", WithoutTerminations)
    with pytest.raises(DataError, match=r"Columns cannot hold these data: .* have different lengths or ends"):
        write(twenty_episodes, Target(resolve(tmp_path / "out"), "Columns"))
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_folder_with_other_data_is_refused_unless_replaced(tmp_path, twenty_episodes):
    target = Target(resolve(tmp_path / "out"))
    write(twenty_episodes, target)
    few_episodes = twenty_episodes.select(range(3))
    with pytest.raises(OutputConflict, match=r"made from a different source.*--replace"):
        write(few_episodes, target)
    with pytest.raises(OutputConflict, match="--replace"):
        write(twenty_episodes, replace(target, format="Columns"))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert write(few_episodes, replace(target, replace=True)).episodes == 3
    assert open_dataset(tmp_path / "out").num_episodes == 3
    assert (tmp_path / "out" / "notes.txt").exists()
    assert leftovers(tmp_path / "out") == []


def test_foreign_files_are_never_replaced(tmp_path, twenty_episodes):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    for options in ({}, {"replace": True}):
        with pytest.raises(OutputConflict, match="files that Hindcast did not write"):
            write(twenty_episodes, Target(resolve(tmp_path / "out"), **options))
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_file()] == ["thesis.txt"]


def test_recording_is_not_overwritten(walks, twenty_episodes):
    with pytest.raises(OutputConflict, match="holds the recording of OfflineRecording/test"):
        write(twenty_episodes, Target(resolve(walks)))


@pytest.mark.parametrize("out", ["part0", "part0/inside", "."])
def test_destination_inside_source_is_refused(tmp_path, make_folders, out):
    (source,) = make_folders(1)
    with pytest.raises(SpecError, match="a separate folder"):
        convert_data(Reading((str(source),)), Target(resolve(tmp_path / out)))


def test_split_into_one_folder_is_refused(tmp_path, make_folders):
    (source,) = make_folders(1)
    target = Target(resolve(tmp_path / "out"))
    with pytest.raises(SpecError, match="a separate folder"):
        split_data(Reading((str(source),)), target, target, fraction=0.5)


@pytest.mark.usefixtures("range_per_unit")
def test_conversion_on_full_disk_resumes_after_space_is_freed(tmp_path, small_disk, twenty_episodes):
    long_blocks = [make_block([20_000], first=100 + i) for i in range(4)]
    paths = [write_block(tmp_path / f"long{i}", block) for i, block in enumerate(long_blocks)]
    dataset = merge([open_dataset(path) for path in paths])
    out = small_disk("size=1m") / "out"
    with pytest.raises(StorageError, match=f"cannot write {out}.*the disk is full"):
        write(dataset, Target(resolve(out), compression="none", file_bytes=300))
    assert leftovers(out) == []
    small_disk("remount,size=40m")
    assert write(dataset, Target(resolve(out), compression="none", file_bytes=300)).episodes == 4
    assert episode_hashes(read_all(out)) == episode_hashes(read_block(dataset))


def test_read_only_folder_is_named(small_disk, twenty_episodes):
    out = small_disk("size=1m,ro") / "out"
    with pytest.raises(StorageError, match=f"{out}.*read-only"):
        write(twenty_episodes, Target(resolve(out)))


def test_empty_selection_is_refused(tmp_path, twenty_episodes):
    with pytest.raises(DataError, match="the selection has no episodes"):
        write(twenty_episodes.filter("length > 1000"), Target(resolve(tmp_path / "out")))
    assert not Path(tmp_path / "out").exists()
