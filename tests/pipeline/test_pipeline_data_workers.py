"""`DataWorkers` delivers what `Local` delivers, whoever dies meanwhile."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pipeline_fakes import FakeDataset

from hindcast import OfflinePreLearner
from hindcast.api.pipeline import PipelineSpec
from hindcast.errors import DataError, UserCodeError, WorkerLost
from hindcast.pipeline.data_workers import DataWorkers
from hindcast.pipeline.executors import Local, UnitInEpoch
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from ray_here import POOL

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_here"), pytest.mark.filterwarnings("ignore")]

UNITS = [[5, 1, 7], [20], [3, 3, 3, 3], [11, 9], [2], [30, 1]]
NEEDS = Needs(frozenset({"obs", "new_obs", "actions", "rewards", "terminateds"}))


class Slow:
    """Takes its time, and says in a file which process read which unit."""

    def __init__(self, dataset, folder, seconds):
        self.dataset = dataset
        self.folder = folder
        self.seconds = seconds

    def __call__(self, unit, epoch):
        with (self.folder / "readers").open("a") as file:
            file.write(f"{os.getpid()} {unit.id}\n")
        time.sleep(self.seconds)
        return self.dataset.read(unit)


class DiesOnce:
    """Is killed in the middle of a read, as the kernel kills: by a signal."""

    def __init__(self, dataset, mark):
        self.dataset = dataset
        self.mark = mark

    def __call__(self, unit, epoch):
        if epoch == 2 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.dataset.read(unit)


class Dies:
    def __call__(self, unit, epoch):
        os.kill(os.getpid(), signal.SIGKILL)


class SlowToRead:
    """A dataset that says in a file when a read begins and ends."""

    def __init__(self, dataset, file):
        self.dataset = dataset
        self.file = file

    def read(self, unit, columns=None):
        self.note("begin")
        time.sleep(0.1)
        self.note("end")
        return self.dataset.read(unit, columns)

    def note(self, what):
        with self.file.open("a") as file:
            file.write(f"{what} ")


class Alone(OfflinePreLearner):
    """Refuses to map two units at the same moment."""

    mapping = 0

    def _map_to_episodes(self, block):
        Alone.mapping += 1
        time.sleep(0.05)
        assert Alone.mapping == 1
        Alone.mapping -= 1
        return block


class AloneInItsCall(Alone):
    """Also between the parts of its own call."""

    def __call__(self, unit, epoch=0):
        self.unit = unit
        block = super().__call__(unit, epoch)
        assert self.unit is unit
        return block


def first_rewards(blocks):
    return [float(block.columns["rewards"][0]) for block in blocks]


def data(dataset, executor, **pipeline):
    spec = PipelineSpec.model_validate(pipeline)
    sources = [Source("data", dataset)]
    return OfflineData(sources, NEEDS, batch_size=10, seed=3, pipeline=spec, executor=executor)


def assert_same_batches(one, other, count):
    try:
        for _ in range(count):
            batch, expected = one.next(), other.next()
            assert batch.keys() == expected.keys()
            assert all(torch.equal(batch[leaf], expected[leaf]) for leaf in expected)
    finally:
        one.close()
        other.close()


def test_data_workers_deliver_the_batches_of_local(make_dataset):
    """Over epochs, with randomness in a connector, and after a jump."""
    dataset = make_dataset(UNITS)
    pipeline = {"windowSteps": 25, "connectors": ["user_steps:Noise"]}
    positions = {"label_selector": POOL}
    ray = data(dataset, DataWorkers((3, 3), num_cpus=0.5, remote_args=positions), **pipeline)
    local = data(dataset, Local(), **pipeline)
    assert_same_batches(ray, local, 12)
    state = local.state() | {"feed": local.state()["feed"] | {"cursor": 333}}
    ray.seek(state)
    local.seek(state)
    assert_same_batches(ray, local, 3)


def test_two_sources_share_one_worker_with_all_cpus(make_dataset):
    """Each with a pool of its own, the second one's would wait for ever for the first one's processors."""
    spec = PipelineSpec(window_steps=25)
    sources = [Source(name, make_dataset(UNITS), weight) for name, weight in (("one", 1.0), ("other", 3.0))]

    def make_mixed(executor):
        return OfflineData(sources, NEEDS, batch_size=10, seed=3, pipeline=spec, executor=executor)

    assert_same_batches(make_mixed(DataWorkers((1, 2), num_cpus=4)), make_mixed(Local()), 40)


def test_pool_when_blocks_are_late_grows(tmp_path: Path):
    dataset = FakeDataset(UNITS)
    work = [UnitInEpoch(dataset.units[number % 6], number // 6) for number in range(60)]
    blocks = DataWorkers((1, 3), num_cpus=0.5).stream("data", work, Slow(dataset, tmp_path, 0.2))
    assert first_rewards(blocks) == first_rewards(dataset.blocks[unit.id] for unit, _ in work)
    readers = {line.split()[0] for line in (tmp_path / "readers").read_text().splitlines()}
    assert len(readers) == 3


@pytest.mark.parametrize("kind", [Alone, AloneInItsCall])
def test_worker_reads_two_units_at_a_time_and_maps_one(tmp_path: Path, kind):
    dataset, file = FakeDataset(UNITS), tmp_path / "reads"
    work = [UnitInEpoch(dataset.units[number % 6], number // 6) for number in range(18)]
    prelearn = kind(SlowToRead(dataset, file), validate=False)
    blocks = DataWorkers((1, 1), num_cpus=0.5).stream("data", work, prelearn)
    assert first_rewards(blocks) == first_rewards(dataset.blocks[unit.id] for unit, _ in work)
    assert ("begin begin" in file.read_text()) == (kind is Alone)


def test_resident_data_are_read_by_data_workers_once(make_dataset):
    dataset = make_dataset(UNITS)
    ray = data(dataset, DataWorkers((1, 2), num_cpus=0.5), residency="Resident")
    assert ray.plan()["executor"] == "DataWorkers"
    assert_same_batches(ray, data(dataset, Local(), residency="Resident"), 20)


def test_stream_after_killed_data_worker_is_unchanged(tmp_path: Path):
    dataset = FakeDataset(UNITS)
    work = [UnitInEpoch(dataset.units[number % 6], number // 6) for number in range(30)]
    blocks = DataWorkers((2, 2), num_cpus=0.5).stream("data", work, DiesOnce(dataset, tmp_path / "died"))
    assert first_rewards(blocks) == first_rewards(dataset.blocks[unit.id] for unit, _ in work)
    assert (tmp_path / "died").exists()


def test_stream_when_data_workers_keep_dying_raises():
    dataset = FakeDataset([[3]])
    with pytest.raises(WorkerLost, match="a data worker died 4 times"):
        next(DataWorkers((1, 1), num_cpus=0.5).stream("data", [UnitInEpoch(dataset.units[0], 0)], Dies()))


def test_user_error_on_data_worker_keeps_its_message(make_dataset):
    broken = data(make_dataset(UNITS), DataWorkers((1, 1), num_cpus=0.5), preLearner="user_steps:Broken")
    with pytest.raises(
        UserCodeError, match=r"^pre-learner Broken raised KeyError at .*user_steps.py:\d+: 'sen"
    ):
        broken.next()
    broken.close()


def test_invalid_data_on_data_worker_names_file_and_row():
    dataset = FakeDataset([[4], [3, 5]])
    dataset.blocks[1] = dataset.blocks[1].with_columns(
        {**dataset.blocks[1].columns, "obs": np.where(np.arange(10)[:, None] == 6, np.nan, 1.0) * np.ones(3)}
    )
    invalid = data(dataset, DataWorkers((1, 1), num_cpus=0.5))
    with pytest.raises(DataError, match=r"file-1\.parquet, row 1 .*'obs' has nan"):
        invalid.next()
    invalid.close()


def test_closed_stream_releases_its_cpus():
    import ray

    dataset = FakeDataset(UNITS)
    endless = (UnitInEpoch(dataset.units[0], epoch) for epoch in itertools.count())
    blocks = DataWorkers((2, 2), num_cpus=1).stream("data", endless, Reads(dataset))
    next(blocks)
    assert ray.available_resources()["CPU"] == 2
    blocks.close()
    until = time.monotonic() + 30
    while ray.available_resources().get("CPU") != 4 and time.monotonic() < until:
        time.sleep(0.2)
    assert ray.available_resources()["CPU"] == 4


class Reads:
    def __init__(self, dataset):
        self.dataset = dataset

    def __call__(self, unit, epoch):
        return self.dataset.read(unit)
