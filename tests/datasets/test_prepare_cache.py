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
def rows(tmp_path, block, monkeypatch) -> str:
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 12)
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))
    return kit.write_files(
        tmp_path / "rows", kit.scramble_rows(kit.table_of(block, tmp_path / "table")), files=5
    )


def folder_of(path: str) -> Path:
    return Path(str(open_reading(Reading((path,))).paths[0]))


def test_prepared_folder_is_an_ordinary_dataset(rows, block):
    folder = folder_of(rows)
    assert episode_hashes(kit.read_block(open_dataset(folder, verify=True))) == episode_hashes(block)
    assert (folder / "prepared.json").exists()
    assert leftovers(folder) == ["prepared.json"]


def test_data_are_prepared_once(rows, monkeypatch):
    first = folder_of(rows)
    monkeypatch.setattr("hindcast.datasets.prepare.preparer.prepare_in_process", None)
    assert folder_of(rows) == first


def test_changed_files_are_prepared_again(rows, block):
    first = folder_of(rows)
    file = Path(rows) / "part-0.parquet"
    file.touch()
    assert folder_of(rows) != first


class KillError(BaseException):
    pass


def test_interrupted_preparation_resumes(rows, block, monkeypatch):
    make, made_numbers = preparer.make_partition, []

    def make_three_then_die(job, number, contents):
        if len(made_numbers) == 3:
            raise KillError
        made_numbers.append(number)
        make(job, number, contents)

    monkeypatch.setattr(preparer, "make_partition", make_three_then_die)
    with pytest.raises(KillError):
        open_data(rows)
    remade_numbers: list[int] = []
    monkeypatch.setattr(
        preparer,
        "make_partition",
        lambda job, number, *rest: (remade_numbers.append(number), make(job, number, *rest)),
    )
    dataset = open_data(rows)
    assert set(remade_numbers).isdisjoint(made_numbers)
    assert remade_numbers
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)


def _prepare(path: str, results) -> None:
    results.put(str(open_reading(Reading((path,))).paths[0]))


def test_two_preparers_at_once_agree(rows, block):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_prepare, args=(rows, results)) for _ in range(2)]
    for process in processes:
        process.start()
    folders = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(folders) == 1
    assert episode_hashes(kit.read_block(open_dataset(folders.pop(), verify=True))) == episode_hashes(block)


def test_waiting_for_another_preparer_is_noted_and_can_be_stopped(rows, block):
    class StopError(Exception):
        pass

    def stop() -> None:
        raise StopError

    notes: list[str] = []

    def meanwhile(stage: str, done: int, total: int) -> None:
        if not notes:
            with pytest.raises(StopError):
                open_data(rows, hooks=Hooks(note=notes.append, check=stop))

    dataset = open_data(rows, hooks=Hooks(meanwhile))
    assert len(notes) == 1
    assert notes[0].startswith(
        "waiting for data that another process is preparing: another process is writing to "
    )
    assert episode_hashes(kit.read_block(dataset)) == episode_hashes(block)


MAPPER = """
import numpy as np
from hindcast import SingleAgentEpisode
from own_base import Base

class Mine(Base):
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
    """Also if only the file of its base class was edited."""
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lines.txt").write_text("a\nb\n")
    reading = Reading((str(tmp_path / "lines.txt"),), "Text", ReadOptions(mapper="own_mapper:Mine"))
    folders = []
    for steps, reward in ((2, 1.0), (3, 1.0), (3, 0.5), (2, 1.0)):
        (tmp_path / "own_mapper.py").write_text(MAPPER.replace("{steps}", str(steps)))
        (tmp_path / "own_base.py").write_text(BASE.replace("{reward}", str(reward)))
        for name in ("own_mapper", "own_base"):
            sys.modules.pop(name, None)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        dataset = open_data(reading)
        folders.append((dataset.num_steps, float(kit.read_block(dataset).columns["rewards"].sum())))
    assert folders == [(4, 4.0), (6, 6.0), (6, 3.0), (4, 4.0)]
    assert len(list((tmp_path / "cache/prepared").iterdir())) == 3
