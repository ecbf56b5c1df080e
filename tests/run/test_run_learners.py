"""Device of a learner, data workers, and the global batch of several learners."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hindcast.api.attempt import Attempt
from hindcast.api.pipeline import DataWorkersSpec, PipelineSpec
from hindcast.api.training import LearnersSpec
from hindcast.cluster.pools import Pools
from hindcast.datasets.opening import open_dataset
from hindcast.errors import DataError, Interrupted, NoCudaDevice, SpecError
from hindcast.learn.group import Group
from hindcast.pipeline.data_workers import DataWorkers
from hindcast.pipeline.executors import Local
from hindcast.pipeline.offline_data import Source
from hindcast.pipeline.residency import host_memory
from hindcast.pipeline.shard import Shard
from hindcast.run import placement
from hindcast.run.placement import LOCAL, LocalPlacement, choose_learner_device
from hindcast.run.training import offline_trainer
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.run.training.trainer import Trainer
from support import MemoryReporter, StopAfter, train, training
from user_errors import raises_user_error


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`cuda(2)` makes torch find two CUDA devices; the last one is the current device."""

    def set_num_devices(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: count - 1)

    return set_num_devices


class TestDevice:
    @pytest.mark.parametrize(
        ("learners", "num_devices", "expected"),
        [
            ({}, 0, "cpu"),
            ({}, 2, "cuda:1"),
            ({"gpus": 1}, 2, "cuda:1"),
            ({"gpus": 1, "device": "cuda"}, 1, "cuda:0"),
            ({"gpus": 1, "device": "cpu"}, 0, "cpu"),
            ({"gpus": 1, "device": "cpu"}, 2, "cpu"),
        ],
    )
    @pytest.mark.parametrize("is_one_machine", [True, False])
    def test_device_follows_spec(
        self, cuda: Any, learners: dict[str, Any], num_devices: int, expected: str, is_one_machine: bool
    ) -> None:
        cuda(num_devices)
        assert choose_learner_device(LearnersSpec.model_validate(learners), is_one_machine) == (
            torch.device(expected),
            None,
        )

    def test_gpus_are_clamped_to_machine_with_note(self, cuda: Any) -> None:
        cuda(0)
        device, note = choose_learner_device(LearnersSpec(gpus=2), is_one_machine=True)
        assert device == torch.device("cpu")
        assert note == "learners.gpus 2 clamped to 0: torch finds no CUDA device here"
        cuda(1)
        device, note = choose_learner_device(LearnersSpec(gpus=2), is_one_machine=True)
        assert device == torch.device("cuda:0")
        assert note == "learners.gpus 2 clamped to 1: this machine has no more"

    def test_missing_gpu_in_pod_is_refused(self, cuda: Any) -> None:
        cuda(0)
        with pytest.raises(
            NoCudaDevice, match=r"learners\.gpus is 1, but torch finds no CUDA device in the le"
        ):
            choose_learner_device(LearnersSpec(gpus=1), is_one_machine=False)

    @pytest.mark.parametrize("is_one_machine", [True, False])
    def test_missing_cuda_device_is_refused(self, cuda: Any, is_one_machine: bool) -> None:
        cuda(0)
        with raises_user_error(NoCudaDevice, "cuda was requested", field="spec.learners.device"):
            choose_learner_device(LearnersSpec(device="cuda"), is_one_machine)

    def test_clamp_is_reported_by_run(
        self, tmp_path: Path, walks: Path, reporter: MemoryReporter, cuda: Any
    ) -> None:
        cuda(0)
        train(training(tmp_path, walks, learners={"gpus": 1}), reporter=reporter)
        assert "learners.gpus 1 clamped to 0: torch finds no CUDA device here" in reporter.notes


class TestNumber:
    @pytest.mark.parametrize(
        ("learners", "num_devices", "expected"),
        [
            ({"replicas": 2}, 0, 2),
            ({"replicas": 2, "gpus": 1}, 2, 2),
            ({"replicas": 1, "gpus": 4}, 4, 4),
            ({"replicas": 2, "gpus": 4}, 8, 8),
            ({"replicas": 2, "gpus": 0.5}, 2, 2),
            ({"replicas": 2, "gpus": 4, "device": "cpu"}, 8, 2),
        ],
    )
    def test_each_gpu_of_a_replica_has_a_process(
        self,
        cuda: Any,
        monkeypatch: pytest.MonkeyPatch,
        learners: dict[str, Any],
        num_devices: int,
        expected: int,
    ) -> None:
        cuda(num_devices)
        monkeypatch.setattr(placement, "num_processors", lambda: 8)
        spec = LearnersSpec.model_validate(learners)
        assert LOCAL.num_learners(spec) == (expected, None)
        assert make_pools().num_learners(spec) == (expected, None)

    def test_learners_are_clamped_to_machine_with_note(
        self, cuda: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cuda(2)
        note = "6 learners clamped to 2: each has a GPU, and there are no more"
        assert LOCAL.num_learners(LearnersSpec(replicas=3, gpus=2)) == (2, note)
        cuda(0)
        monkeypatch.setattr(placement, "num_processors", lambda: 2)
        note = "3 learners clamped to 2: this machine has 2 processors"
        assert LOCAL.num_learners(LearnersSpec(replicas=3)) == (2, note)

    def test_process_n_of_a_machine_has_gpu_n(self, cuda: Any) -> None:
        cuda(2)
        devices = [choose_learner_device(LearnersSpec(), True, rank)[0] for rank in (0, 1)]
        assert [device.index for device in devices] == [0, 1]

    def test_processes_divide_the_cpus_and_gpus_of_a_pod(self) -> None:
        pool = {"label_selector": {"hindcast.dev/pool": "learner"}}
        options = {
            (1, None): {"num_cpus": 4, "num_gpus": 1},
            (4, None): {"num_cpus": 4, "num_gpus": 1},
            (4, 2): {"num_cpus": 0, "num_gpus": 1},
            (0.5, 1.5): {"num_cpus": 2, "num_gpus": 0.5},
        }
        for (gpus, cpus), expected in options.items():
            assert make_pools().learner_options(LearnersSpec(gpus=gpus, cpus=cpus)) == expected | pool


class TestDataWorkers:
    def test_cluster_workers_are_actors_in_data_pool(self) -> None:
        workers = DataWorkersSpec(minReplicas=2, maxReplicas=5, cpus=1.5, gpus=1)
        executor = make_pools().data_workers(PipelineSpec(data_workers=workers, disk_cache="1Gi"))
        assert isinstance(executor, DataWorkers)
        assert executor.worker_limits == (2, 5)
        assert executor.disk_cache_bytes == 1 << 30
        pool = {"label_selector": {"hindcast.dev/pool": "data"}}
        assert executor.options == {"num_cpus": 2, "num_gpus": 1, **pool}

    def test_no_workers_means_local_executor(self) -> None:
        """Without workers a learner reads in its own process, as a single machine always does."""
        no_workers = PipelineSpec(data_workers=DataWorkersSpec(replicas=0))
        assert isinstance(make_pools().data_workers(no_workers), Local)
        assert isinstance(LOCAL.data_workers(PipelineSpec()), Local)

    def test_plan_names_executor(self, tmp_path: Path, walks: Path) -> None:
        trainer = make_offline_trainer(
            training(tmp_path, walks), [Source(str(walks), open_dataset(walks))], make_pools()
        )
        assert trainer.experience.plan()["executor"] == "DataWorkers"
        trainer = make_offline_trainer(training(tmp_path, walks), [Source(str(walks), open_dataset(walks))])
        assert trainer.experience.plan()["executor"] == "Local"


@pytest.fixture
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one learner train on the batches of all, which does not change them."""
    for placement_class in (LocalPlacement, Pools):
        monkeypatch.setattr(placement_class, "num_learners", lambda *_: (1, None))


@pytest.mark.usefixtures("_one_process")
class TestGlobalBatch:
    def test_global_batch_stays_after_learners_change(self, tmp_path: Path, walks: Path) -> None:
        """Starts with two learners, resumes with five, then with one."""
        stop = {"updates": 12}
        with pytest.raises(Interrupted):
            train(training(tmp_path, walks, learners={"replicas": 2}, stop=stop), StopAfter(5))
        with pytest.raises(Interrupted):
            train(training(tmp_path, walks, learners={"replicas": 5}, stop=stop), StopAfter(3))
        outcome = train(training(tmp_path, walks, stop=stop))
        assert outcome.metrics["timesteps"] == 12 * 64
        reference = train(training(tmp_path / "uninterrupted", walks, learners={"replicas": 2}, stop=stop))
        assert outcome.metrics["loss"] == reference.metrics["loss"]

    def test_global_batch_of_run_folder_takes_precedence(self, tmp_path: Path, walks: Path) -> None:
        """The resource is recreated with two learners, and its new status lacks the initial number."""
        spec: dict[str, Any] = {"stop": {"iterations": 4}, "pipeline": {"dataWorkers": {"replicas": 0}}}
        with pytest.raises(Interrupted):
            train(training(tmp_path, walks, **spec), StopAfter(20))
        outcome = train(training(tmp_path, walks, learners={"replicas": 2}, **spec), placement=make_pools())
        reference = train(training(tmp_path / "uninterrupted", walks, **spec))
        assert outcome.metrics["updates"] == reference.metrics["updates"]
        assert outcome.metrics["timesteps"] == reference.metrics["timesteps"]
        assert outcome.metrics["loss"] == reference.metrics["loss"]

    def test_global_batch_that_differs_from_checkpoint_is_refused(self, tmp_path: Path, walks: Path) -> None:
        """Without `spec.json`, a resource with another number of learners would claim the folder."""
        with pytest.raises(Interrupted):
            train(training(tmp_path, walks), StopAfter(5))
        (tmp_path / "test/r1/spec.json").unlink()
        message = (
            "the items per batch were 32 when the checkpoint was written and are 64 now. Undo the change"
        )
        with pytest.raises(DataError, match=message):
            train(training(tmp_path, walks, learners={"replicas": 2}))
        assert train(training(tmp_path, walks)).state == "Succeeded"
        assert (tmp_path / "test/r1/spec.json").exists()

    def test_new_revision_has_new_global_batch(self, tmp_path: Path, walks: Path) -> None:
        train(training(tmp_path, walks, learners={"replicas": 2}, stop={"updates": 1}))
        second_revision = training(tmp_path, walks, revision=2, stop={"updates": 1})
        assert train(second_revision).metrics["timesteps"] == 32

    def test_uneven_shards_are_noted(self, tmp_path: Path, walks: Path) -> None:
        resource = training(tmp_path, walks)
        trainer = make_trainer_of_rank(resource, walks, Shard(0, 3), initial_num_learners=2)
        assert list(map(str, trainer.notes)) == [
            "3 learners share the batch of 64 timesteps; its size was fixed when the run started with 2",
            "a batch of 64 timesteps is divided among 3 learners: shards differ in size and are weighted by size",
        ]
        assert trainer.experience.batch_size == 64
        assert 20 <= len(trainer.experience.next()["obs"]) <= 23

    def test_batch_smaller_than_number_of_learners_is_refused(self, tmp_path: Path, walks: Path) -> None:
        with raises_user_error(
            SpecError, "makes 40 learners, but a batch has 32 timesteps", field="spec.learners"
        ):
            make_trainer_of_rank(training(tmp_path, walks), walks, Shard(0, 40), initial_num_learners=1)

    @pytest.mark.parametrize(("hosts", "divisor"), [(["here", "here"], 2), (["here", "there"], 1)])
    def test_learners_of_one_machine_share_its_memory(
        self, tmp_path: Path, walks: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[str], divisor: int
    ) -> None:
        monkeypatch.setattr(platform, "node", lambda: "here")
        monkeypatch.setattr(Group, "gather_values", lambda *_: hosts)
        resource = training(tmp_path, walks)
        trainer = make_trainer_of_rank(resource, walks, Shard(0, 2), initial_num_learners=2)
        assert trainer.experience.plan()["residentBudget"] == int(host_memory() / 4 / divisor)
        nbytes = trainer.experience.batch_bytes
        for memory in (nbytes * divisor // 2, nbytes * divisor // 2 - 1):
            monkeypatch.setattr(offline_trainer, "host_memory", lambda memory=memory: memory)
            refusal = pytest.raises(SpecError, match="a batch would take")
            with contextlib.nullcontext() if memory >= nbytes * divisor // 2 else refusal:
                make_trainer_of_rank(resource, walks, Shard(0, 2), initial_num_learners=2)


def test_only_the_first_learner_fits_and_the_others_copy_its_state(tmp_path: Path, walks: Path) -> None:
    resource = training(
        tmp_path, walks, algorithm="DecisionTransformer", model={"observationFilter": "MeanStd"}
    )
    leader, follower = (
        make_trainer_of_rank(resource, walks, Shard(rank, 2), initial_num_learners=2) for rank in (0, 1)
    )
    states: list[Any] = []
    leader.learner.group.gather_values = lambda value: states.append(value) or states
    follower.learner.group.gather_values = lambda _: states
    follower.prepare = lambda: pytest.fail("the second learner reads all data")
    leader.begin()
    follower.begin()
    weights, expected = (trainer.learner.nets.state_dict() for trainer in (follower, leader))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    preprocessing, expected = (trainer.policy.preprocessing.state() for trainer in (follower, leader))
    assert expected["obs/count"] > 0
    assert all(np.array_equal(preprocessing[name], expected[name]) for name in expected)


def make_pools() -> Pools:
    attempt = Attempt(revision=1, number=1, ray_job_name="c", namespace="n", uid="u", spec_hash="-")
    return Pools(attempt)


def make_trainer_of_rank(resource: Any, data: Path, shard: Shard, initial_num_learners: int) -> Trainer:
    group = Group()
    group.shard = shard
    return make_offline_trainer(
        resource,
        [Source(str(data), open_dataset(data))],
        group=group,
        initial_num_learners=initial_num_learners,
    )
