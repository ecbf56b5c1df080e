"""`DataWorkers` delivers the same blocks as `Local`, also if a worker dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pipeline_fakes import UNITS, FakeDataset, are_equal_batches

from hindcast import OfflinePreLearner
from hindcast.api.pipeline import PipelineSpec
from hindcast.errors import DataError, UserCodeError, WorkerLost
from hindcast.pipeline.data_workers import DataPool, DataWorkers
from hindcast.pipeline.executors import Local
from hindcast.pipeline.loader import cancel
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from ray_here import POOL
from user_errors import raises_user_error

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_here"), pytest.mark.filterwarnings("ignore")]

NEEDS = Needs(frozenset({"obs", "new_obs", "actions", "rewards", "terminateds"}))


class SlowPreLearn:
    """Reads slowly, and appends the id of its process to a file for each unit."""

    def __init__(self, dataset, file, seconds):
        self.dataset = dataset
        self.file = file
        self.seconds = seconds

    def __call__(self, unit, epoch):
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(self.seconds)
        return self.dataset.read(unit)


class DiesOnce:
    """Kills its process once, in epoch 2, by SIGKILL, as the kernel does if memory runs out."""

    def __init__(self, dataset, marker_file):
        self.dataset = dataset
        self.marker_file = marker_file

    def __call__(self, unit, epoch):
        if epoch == 2 and not self.marker_file.exists():
            self.marker_file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.dataset.read(unit)


class Sleeps:
    def __call__(self, unit, epoch):
        time.sleep(3600)


class Dies:
    def __call__(self, unit, epoch):
        os.kill(os.getpid(), signal.SIGKILL)


class SlowDataset:
    """A dataset that writes "begin" and "end" of each read to a file."""

    def __init__(self, dataset, file):
        self.dataset = dataset
        self.file = file

    def read(self, unit, columns=None):
        self.log("begin")
        time.sleep(0.1)
        self.log("end")
        return self.dataset.read(unit, columns)

    def log(self, event):
        with self.file.open("a") as file:
            file.write(f"{event} ")


class NotThreadSafeMapping(OfflinePreLearner):
    """Fails if two units are mapped at the same time."""

    num_active = 0

    def _map_to_episodes(self, block):
        NotThreadSafeMapping.num_active += 1
        time.sleep(0.05)
        assert NotThreadSafeMapping.num_active == 1
        NotThreadSafeMapping.num_active -= 1
        return block


class NotThreadSafeCall(NotThreadSafeMapping):
    """Also fails if `__call__` runs for two units at the same time."""

    def __call__(self, unit, epoch=0):
        self.unit = unit
        block = super().__call__(unit, epoch)
        assert self.unit is unit
        return block


def read(executor, work, prelearn):
    """Return the first reward of each unit of the work, read together; then end the pool."""
    futures = [
        executor.submit(prelearn, unit, epoch, lambda block: float(block.columns["rewards"][0]))
        for unit, epoch in work
    ]
    try:
        return [future.result(60) for future in futures]
    finally:
        executor.close()


def first_rewards(dataset, work):
    return [float(dataset.blocks[unit.id].columns["rewards"][0]) for unit, _ in work]


def make_data(dataset, executor, **pipeline):
    spec = PipelineSpec.model_validate(pipeline)
    sources = [Source("data", dataset)]
    return OfflineData(sources, NEEDS, batch_size=10, seed=3, pipeline=spec, executor=executor)


def assert_same_batches(actual_data, expected_data, num_batches):
    """Compare the next batches of two `OfflineData`, and close both."""
    try:
        for _ in range(num_batches):
            assert are_equal_batches(actual_data.next(), expected_data.next())
    finally:
        actual_data.close()
        expected_data.close()


def test_data_workers_deliver_same_batches_as_local_executor(make_dataset):
    """Compare batches of several epochs, with a random connector, before and after a seek."""
    dataset = make_dataset(UNITS)
    pipeline = {"windowSteps": 25, "connectors": ["user_steps:Noise"]}
    remote_args = {"label_selector": POOL}
    ray = make_data(dataset, DataWorkers((3, 3), num_cpus=0.5, remote_args=remote_args), **pipeline)
    local = make_data(dataset, Local(), **pipeline)
    assert_same_batches(ray, local, 12)
    state = local.state() | {"feed": local.state()["feed"] | {"cursor": 333}}  # closed data can continue
    ray.seek(state)
    local.seek(state)
    assert_same_batches(ray, local, 3)


def test_two_sources_share_one_worker_with_all_cpus(make_dataset):
    """With a separate pool for each source, the second one would wait forever for the first one's CPUs."""
    spec = PipelineSpec(window_steps=25)
    sources = [
        Source(name, make_dataset(UNITS), weight) for name, weight in (("first", 1.0), ("second", 3.0))
    ]

    def make_mixed(executor):
        return OfflineData(sources, NEEDS, batch_size=10, seed=3, pipeline=spec, executor=executor)

    assert_same_batches(make_mixed(DataWorkers((1, 2), num_cpus=4)), make_mixed(Local()), 40)


def test_pool_grows_while_learners_wait(tmp_path: Path):
    """With two units at a time, one worker would need 20 seconds."""
    dataset, executor = FakeDataset(UNITS), DataWorkers((1, 3), num_cpus=0.5)
    prelearn = SlowPreLearn(dataset, tmp_path / "readers", 0.4)
    futures = [
        executor.submit(prelearn, dataset.units[index % 6], index // 6, lambda block: block.num_steps)
        for index in range(100)
    ]
    while not all(future.done() for future in futures):
        executor.note_wait()
        time.sleep(0.2)
    assert sum(future.result() for future in futures) == sum(
        dataset.blocks[i % 6].num_steps for i in range(100)
    )
    readers = {line.split()[0] for line in (tmp_path / "readers").read_text().splitlines()}
    assert len(readers) == 3
    executor.close()


@pytest.mark.parametrize("prelearner_class", [NotThreadSafeMapping, NotThreadSafeCall])
def test_worker_reads_two_units_at_a_time_and_maps_one(tmp_path: Path, prelearner_class):
    dataset, file = FakeDataset(UNITS), tmp_path / "reads"
    work = [(dataset.units[index % 6], index // 6) for index in range(18)]
    prelearn = prelearner_class(SlowDataset(dataset, file), validate=False)
    assert read(DataWorkers((1, 1), num_cpus=0.5), work, prelearn) == first_rewards(dataset, work)
    # A custom `__call__` reads during its turn, so that reads do not overlap.
    assert ("begin begin" in file.read_text()) == (prelearner_class is NotThreadSafeMapping)


def test_resident_data_are_read_by_data_workers_once(make_dataset):
    dataset = make_dataset(UNITS)
    ray = make_data(dataset, DataWorkers((1, 2), num_cpus=0.5), residency="Resident")
    assert ray.plan()["executor"] == "DataWorkers"
    assert_same_batches(ray, make_data(dataset, Local(), residency="Resident"), 20)


def test_stream_after_killed_data_worker_is_unchanged(tmp_path: Path):
    dataset = FakeDataset(UNITS)
    work = [(dataset.units[index % 6], index // 6) for index in range(30)]
    prelearn = DiesOnce(dataset, tmp_path / "died")
    assert read(DataWorkers((2, 2), num_cpus=0.5), work, prelearn) == first_rewards(dataset, work)
    assert (tmp_path / "died").exists()


def test_stream_raises_when_data_workers_keep_dying():
    dataset = FakeDataset([[3]])
    with pytest.raises(WorkerLost, match="a data worker died 4 times"):
        read(DataWorkers((1, 1), num_cpus=0.5), [(dataset.units[0], 0)], Dies())


def test_user_error_on_data_worker_keeps_its_message(make_dataset):
    broken = make_data(make_dataset(UNITS), DataWorkers((1, 1), num_cpus=0.5), preLearner="user_steps:Broken")
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
    invalid = make_data(dataset, DataWorkers((1, 1), num_cpus=0.5))
    with raises_user_error(DataError, "'obs' has nan", path="file-1.parquet", row=1):
        invalid.next()
    invalid.close()


def test_pool_stays_until_it_is_closed():
    import ray

    dataset, executor = FakeDataset(UNITS), DataWorkers((2, 2), num_cpus=1)
    submit = partial(executor.submit, PlainPreLearn(dataset), dataset.units[0], 0)
    assert submit(lambda block: block.num_steps).result(60) == 13
    assert submit(lambda block: block.num_episodes).result(60) == 3
    assert ray.available_resources()["CPU"] == 2
    executor.close()
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU") != 4 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ray.available_resources()["CPU"] == 4


def test_learners_share_one_pool():
    """Together two learners have no more workers than one."""
    import ray

    dataset = FakeDataset(UNITS)
    leader = DataWorkers((1, 1), num_cpus=4)
    follower = leader.join(leader.open_pool())
    prelearn = PlainPreLearn(dataset)
    futures = [
        executor.submit(prelearn, unit, 0, lambda block: block.num_steps)
        for unit in dataset.units
        for executor in (leader, follower)
    ]
    assert sum(future.result(60) for future in futures) == 2 * dataset.num_steps
    follower.close()
    assert ray.available_resources().get("CPU", 0) == 0
    leader.close()


@pytest.mark.parametrize("waits_for", ["workers", "pool", "block"])
def test_reads_that_wait_for_data_workers_can_be_cancelled(waits_for):
    """Neither the workers nor the pool of another learner find a node with enough CPUs, or a worker reads for long."""
    import ray

    dataset = FakeDataset(UNITS)
    executor = DataWorkers((1, 1), num_cpus=0.5 if waits_for == "block" else 1000)
    prelearn = Sleeps() if waits_for == "block" else PlainPreLearn(dataset)
    if waits_for == "pool":
        pool = ray.remote(DataPool).options(name="pending-pool", num_cpus=1000).remote((1, 1), {})
        executor = executor.join("pending-pool")
    futures = [executor.submit(prelearn, unit, 0, lambda block: block.num_steps) for unit in dataset.units]
    time.sleep(1)  # the reads have begun to wait
    while waits_for == "block" and not executor._num_reading:
        time.sleep(0.1)
    closing = threading.Thread(target=lambda: (cancel(futures), executor.close()), daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(0)
    if waits_for == "pool":
        ray.kill(pool)


def test_lost_pool_is_reported_as_lost_workers():
    import ray

    dataset, executor = FakeDataset(UNITS), DataWorkers((1, 1), num_cpus=0.5)
    submit = partial(executor.submit, PlainPreLearn(dataset), dataset.units[0])
    follower = executor.join(executor.open_pool())
    assert submit(0, lambda block: block.num_steps).result(60) == 13
    ray.kill(executor._pool)
    time.sleep(1.5)  # then a learner asks again for the current workers
    with pytest.raises(WorkerLost, match="the pool of data workers was lost"):
        submit(1, lambda block: block.num_steps).result(60)
    with pytest.raises(WorkerLost, match="the pool of data workers was lost"):
        follower.submit(PlainPreLearn(dataset), dataset.units[0], 0, lambda block: block).result(60)
    executor.close()
    assert submit(2, lambda block: block.num_steps).result(60) == 13
    executor.close()


class PlainPreLearn:
    def __init__(self, dataset):
        self.dataset = dataset

    def __call__(self, unit, epoch):
        return self.dataset.read(unit)
