"""Prepared data are cached, prepared once, and resumed after an interruption."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from pathlib import Path

import prepare_kit as kit
import pytest

from hindcast.datasets.hooks import Hooks
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare import preparer
from hindcast.datasets.prepare.opening import open_data, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.formats.format import ReadOptions
from support import episode_hashes, leftovers


@pytest.fixture
def block():
    return kit.make_block([9] * 40)


@pytest.fixture
def data_path(tmp_path, block, monkeypatch) -> str:
    """Write the rows of the block to five files in random order; partitions of prepared data are small."""
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 12)
    rows = kit.scramble_rows(kit.make_table(block, tmp_path / "table"))
    return kit.write_files(tmp_path / "rows", rows, num_files=5)


def prepare(path: str) -> Path:
    """Prepare the data of a path, and return the folder of the prepared data."""
    return Path(str(open_reading(Reading((path,))).paths[0]))


def test_prepared_folder_is_an_ordinary_dataset(data_path, block):
    folder = prepare(data_path)
    assert episode_hashes(kit.read_block(open_dataset(folder, verify=True))) == episode_hashes(block)
    assert (folder / "prepared.json").exists()
    assert leftovers(folder) == ["prepared.json"]


def test_data_are_prepared_once(data_path, monkeypatch):
    first_folder = prepare(data_path)
    monkeypatch.setattr("hindcast.datasets.prepare.preparer.prepare_in_process", None)
    assert prepare(data_path) == first_folder


def test_changed_files_are_prepared_again(data_path, block):
    first_folder = prepare(data_path)
    file = Path(data_path) / "part-0.parquet"
    file.touch()
    assert prepare(data_path) != first_folder


class KillError(BaseException):
    pass


def test_interrupted_preparation_resumes(data_path, block, monkeypatch):
    make_partition, first_numbers = preparer.make_partition, []

    def make_three_then_raise(job, number, contents):
        if len(first_numbers) == 3:
            raise KillError
        first_numbers.append(number)
        make_partition(job, number, contents)

    monkeypatch.setattr(preparer, "make_partition", make_three_then_raise)
    with pytest.raises(KillError):
        open_data(data_path)
    later_numbers: list[int] = []

    def make_and_note(job, number, contents):
        later_numbers.append(number)
        make_partition(job, number, contents)

    monkeypatch.setattr(preparer, "make_partition", make_and_note)
    dataset = open_data(data_path)
    assert set(later_numbers).isdisjoint(first_numbers)
    assert later_numbers
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)


def _prepare(path: str, results) -> None:
    results.put(str(open_reading(Reading((path,))).paths[0]))


def test_concurrent_preparations_return_the_same_folder(data_path, block):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_prepare, args=(data_path, results)) for _ in range(2)]
    for process in processes:
        process.start()
    folders = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(folders) == 1
    assert episode_hashes(kit.read_block(open_dataset(folders.pop(), verify=True))) == episode_hashes(block)


def test_waiting_for_another_preparer_is_noted_and_can_be_stopped(data_path, block):
    class StopError(Exception):
        pass

    def stop() -> None:
        raise StopError

    notes: list[str] = []

    def open_concurrently(stage: str, done: int, total: int) -> None:
        if not notes:
            with pytest.raises(StopError):
                open_data(data_path, hooks=Hooks(note=notes.append, check=stop))

    dataset = open_data(data_path, hooks=Hooks(open_concurrently))
    assert len(notes) == 1
    assert notes[0].startswith("waiting for data that another process is preparing: another process is wri")
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)


MAPPER = """
import numpy as np
from hindcast import SingleAgentEpisode
from base_module import Base

class LinesMapper(Base):
    @staticmethod
    def map_rows(rows, **kwargs):
        steps = {steps}
        return [
            SingleAgentEpisode(
                observations=[np.zeros(2, np.float32)] * (steps + 1),
                actions=[0] * steps, rewards=[Base.reward] * steps, terminated=True,
                id_=str(text), len_lookback_buffer=0,
            )
            for text in rows["text"]
        ]
"""
BASE = """
from hindcast import OfflinePreLearner

class Base(OfflinePreLearner):
    reward = {reward}
"""


def test_changed_mapper_is_prepared_again(tmp_path, monkeypatch):
    """Edit the file of the mapper, then the file of its base class."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lines.txt").write_text("a\nb\n")
    reading = Reading((str(tmp_path / "lines.txt"),), "Text", ReadOptions(mapper="mapper_module:LinesMapper"))
    contents = []
    for steps, reward in ((2, 1.0), (3, 1.0), (3, 0.5), (2, 1.0)):
        (tmp_path / "mapper_module.py").write_text(MAPPER.replace("{steps}", str(steps)))
        (tmp_path / "base_module.py").write_text(BASE.replace("{reward}", str(reward)))
        for name in ("mapper_module", "base_module"):
            sys.modules.pop(name, None)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        dataset = open_data(reading)
        contents.append((dataset.num_steps, float(kit.read_block(dataset).columns["rewards"].sum())))
    assert contents == [(4, 4.0), (6, 6.0), (6, 3.0), (4, 4.0)]
    assert len(list((tmp_path / "cache/prepared").iterdir())) == 3
