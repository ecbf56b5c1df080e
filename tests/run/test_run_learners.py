"""The device of a learner, and the batch of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hindcast.api.attempt import Attempt
from hindcast.api.pipeline import DataWorkersSpec
from hindcast.api.training import LearnersSpec
from hindcast.cluster.pools import Pools
from hindcast.datasets.opening import open_dataset
from hindcast.errors import DataError, Interrupted, NoCudaDevice, SpecError
from hindcast.pipeline.data_workers import DataWorkers
from hindcast.pipeline.executors import Local
from hindcast.pipeline.offline_data import Source
from hindcast.pipeline.shard import Shard
from hindcast.run.offline_trainer import make_offline_trainer
from hindcast.run.placement import LOCAL, learner_device
from hindcast.run.trainer import Trainer
from support import MemoryReporter, StopAfter, train, training


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`cuda(2)`: torch finds two CUDA devices, of which the process's current one is the last."""

    def there(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: count - 1)

    return there


class TestDevice:
    @pytest.mark.parametrize(
        ("learners", "devices", "found"),
        [
            ({}, 0, "cpu"),
            ({}, 2, "cuda:1"),
            ({"gpus": 1}, 2, "cuda:1"),
            ({"gpus": 1, "device": "cuda"}, 1, "cuda:0"),
            ({"gpus": 1, "device": "cpu"}, 0, "cpu"),
            ({"gpus": 1, "device": "cpu"}, 2, "cpu"),
        ],
    )
    @pytest.mark.parametrize("here", [True, False])
    def test_is_what_was_asked_for(
        self, cuda: Any, learners: dict[str, Any], devices: int, found: str, here: bool
    ) -> None:
        cuda(devices)
        assert learner_device(LearnersSpec.model_validate(learners), here) == (torch.device(found), None)

    def test_gpus_are_clamped_to_this_machine(self, cuda: Any) -> None:
        cuda(0)
        device, note = learner_device(LearnersSpec(gpus=2), is_one_machine=True)
        assert device == torch.device("cpu")
        assert note == "learners.gpus 2 clamped to 0: torch finds no CUDA device here"
        cuda(1)
        device, note = learner_device(LearnersSpec(gpus=2), is_one_machine=True)
        assert device == torch.device("cuda:0")
        assert note == "learners.gpus 2 clamped to 1: this machine has no more"

    def test_in_a_pod_a_gpu_that_was_given_must_be_there(self, cuda: Any) -> None:
        cuda(0)
        with pytest.raises(
            NoCudaDevice, match=r"learners\.gpus is 1, and torch finds no CUDA device in the le"
        ):
            learner_device(LearnersSpec(gpus=1), is_one_machine=False)

    @pytest.mark.parametrize("here", [True, False])
    def test_cuda_that_was_asked_for_must_be_there(self, cuda: Any, here: bool) -> None:
        cuda(0)
        with pytest.raises(NoCudaDevice, match=r"spec\.learners\.device: cuda was requested"):
            learner_device(LearnersSpec(device="cuda"), here)

    def test_a_clamp_is_told_by_the_run(
        self, tmp_path: Path, walks: Path, reporter: MemoryReporter, cuda: Any
    ) -> None:
        cuda(0)
        train(training(tmp_path, walks, learners={"gpus": 1}), reporter=reporter)
        assert "learners.gpus 1 clamped to 0: torch finds no CUDA device here" in reporter.notes


class TestDataWorkers:
    def test_of_a_cluster_are_actors_in_their_pool(self) -> None:
        workers = DataWorkersSpec(minReplicas=2, maxReplicas=5, cpus=1.5, gpus=1)
        assert pools().data_workers(workers) == DataWorkers(
            (2, 5), num_cpus=2, num_gpus=1, remote_args={"label_selector": {"hindcast.dev/pool": "data"}}
        )

    def test_none_are_needed(self) -> None:
        """A learner then reads for itself; and so does this machine, whatever it is asked for."""
        assert isinstance(pools().data_workers(DataWorkersSpec(replicas=0)), Local)
        assert isinstance(LOCAL.data_workers(DataWorkersSpec(replicas=4)), Local)

    def test_are_named_by_the_plan(self, tmp_path: Path, walks: Path) -> None:
        trainer = make_offline_trainer(
            training(tmp_path, walks), [Source(str(walks), open_dataset(walks))], pools()
        )
        assert trainer.experience.plan()["executor"] == "DataWorkers"
        trainer = make_offline_trainer(training(tmp_path, walks), [Source(str(walks), open_dataset(walks))])
        assert trainer.experience.plan()["executor"] == "Local"


class TestGlobalBatch:
    def test_stays_that_of_the_start(self, tmp_path: Path, walks: Path) -> None:
        """Interrupted with two learners in the resource, continued with five, then with one."""
        stop = {"updates": 12}
        with pytest.raises(Interrupted):
            train(training(tmp_path, walks, learners={"replicas": 2}, stop=stop), StopAfter(5))
        with pytest.raises(Interrupted):
            train(training(tmp_path, walks, learners={"replicas": 5}, stop=stop), StopAfter(3))
        outcome = train(training(tmp_path, walks, stop=stop))
        assert outcome.metrics["timesteps"] == 12 * 64
        whole = train(training(tmp_path / "whole", walks, learners={"replicas": 2}, stop=stop))
        assert outcome.metrics["loss"] == whole.metrics["loss"]

    def test_is_the_run_folders_whatever_the_cluster_says(self, tmp_path: Path, walks: Path) -> None:
        """Deleted and applied again with two learners: the new resource's status knows nothing of the first one."""
        spec: dict[str, Any] = {"stop": {"iterations": 4}, "pipeline": {"dataWorkers": {"replicas": 0}}}
        with pytest.raises(Interrupted):
            train(training(tmp_path, walks, **spec), StopAfter(20))
        outcome = train(training(tmp_path, walks, learners={"replicas": 2}, **spec), placement=pools())
        whole = train(training(tmp_path / "whole", walks, **spec))
        assert outcome.metrics["updates"] == whole.metrics["updates"]
        assert outcome.metrics["timesteps"] == whole.metrics["timesteps"]
        assert outcome.metrics["loss"] == whole.metrics["loss"]

    def test_that_is_not_the_checkpoints_is_refused(self, tmp_path: Path, walks: Path) -> None:
        """Where `spec.json` was lost, the folder is claimed anew by a resource with other learners."""
        with pytest.raises(Interrupted):
            train(training(tmp_path, walks), StopAfter(5))
        (tmp_path / "test/r1/spec.json").unlink()
        sentence = (
            "the timesteps per batch were 32 when the checkpoint was written and are 64 now. Undo the change"
        )
        with pytest.raises(DataError, match=sentence):
            train(training(tmp_path, walks, learners={"replicas": 2}))
        assert train(training(tmp_path, walks)).state == "Succeeded"
        assert (tmp_path / "test/r1/spec.json").exists()

    def test_of_another_revision_is_its_own(self, tmp_path: Path, walks: Path) -> None:
        train(training(tmp_path, walks, learners={"replicas": 2}, stop={"updates": 1}))
        second = training(tmp_path, walks, revision=2, stop={"updates": 1})
        assert train(second).metrics["timesteps"] == 32

    def test_shared_unevenly_is_said(self, tmp_path: Path, walks: Path) -> None:
        trainer = in_group(training(tmp_path, walks), walks, Shard(0, 3), first_learners=2)
        assert trainer.notes == [
            "3 learners share the batch of 64 timesteps, fixed when the run began with 2",
            "64 timesteps over 3 learners: parts differ by one and are weighted by size",
        ]
        assert trainer.experience.batch_size == 64
        assert len(trainer.experience.next()["obs"]) == 21

    def test_smaller_than_the_learners_is_refused(self, tmp_path: Path, walks: Path) -> None:
        with pytest.raises(SpecError, match=r"spec\.learners\.replicas is 40, and a batch has 32 timesteps"):
            in_group(training(tmp_path, walks), walks, Shard(0, 40), first_learners=1)


def pools() -> Pools:
    attempt = Attempt(revision=1, number=1, ray_job_name="c", namespace="n", uid="u", spec_hash="-")
    return Pools(attempt)


def in_group(resource: Any, data: Path, share: Shard, first_learners: int) -> Trainer:
    from hindcast.learn.group import Group

    group = Group()
    group.shard = share
    return make_offline_trainer(
        resource, [Source(str(data), open_dataset(data))], group=group, first_learners=first_learners
    )
