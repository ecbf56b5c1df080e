"""Several learners on this machine: processes that follow the one that runs the training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch.distributed as dist
from loky.process_executor import ShutdownExecutorError
from torch.distributed import TCPStore

from hindcast.api import OfflineTraining
from hindcast.errors import DataError, UserCodeError, WorkerLost
from hindcast.learn.group import PeerLost
from hindcast.pipeline.connectors import BatchConnector, Context
from hindcast.pipeline.window import Batch
from hindcast.report.results import read_results
from hindcast.run.placement import LocalPlacement
from hindcast.run.training import learner_group
from hindcast.storage.location import resolve
from support import train, training


class FailsOnce(BatchConnector):
    """Ends the learner of a rank in an update, once: by SIGKILL or by an error.

    Args:
        file: created then; nothing happens if it exists.
        rank: the learner that ends.
        error: raise an error.
    """

    def __init__(self, file: str, rank: int, error: bool = False) -> None:
        self._file, self._rank, self._error = Path(file), rank, error

    def __call__(self, batch: Batch, context: Context) -> Batch:
        is_due = context.position >= 11 * 64 and not self._file.exists()
        if is_due and dist.is_initialized() and dist.get_rank() == self._rank:
            self._file.touch()
            if not self._error:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("no such column")
        return batch


def make_training(folder: Path, data: Path, replicas: int = 2, **spec: Any) -> OfflineTraining:
    """Make a training of 16 updates on 64 timesteps, with noise that differs by learner (dropout) and with targets."""
    return training(
        folder,
        data,
        algorithm="MARWIL",
        config={"trainBatchSizePerLearner": 64 // replicas},
        model={"fcnetHiddens": [16], "dropout": 0.2, **spec.pop("model", {})},
        pipeline={"datasetNumItersPerLearner": 4, "windowSteps": 100, **spec.pop("pipeline", {})},
        learners={"replicas": replicas, "device": "cpu"},
        checkpoint={"every": 1},
        stop={"updates": 16},
        **spec,
    )


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    path = folder / "test/r1/checkpoints/checkpoint-000000016/learner.safetensors"
    return safetensors.numpy.load_file(path)


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path, walks: Path) -> None:
    model = {"dropout": 0.0}
    train(make_training(tmp_path / "one", walks, 1, model=model))
    outcome = train(make_training(tmp_path / "two", walks, 2, model=model))
    assert outcome.metrics["timesteps"] == 16 * 64
    assert not dist.is_initialized()
    weights, expected = read_weights(tmp_path / "two"), read_weights(tmp_path / "one")
    for name in [name for name in expected if name.startswith("nets/")]:
        np.testing.assert_allclose(weights[name], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)
    for result in read_results(resolve(tmp_path / "two/test/r1")):
        shares = result["timers"]["shares"]
        assert len(shares) == 2
        assert all(learner["allReduce"] > 0 and learner["update"] > 0 for learner in shares)
        assert all(learner["wait"] + learner["allReduce"] + learner["update"] < 1.01 for learner in shares)
        assert result["timers"]["bottleneck"].endswith(".")


@pytest.mark.slow
def test_training_that_loses_a_learner_resumes_bit_exactly(tmp_path: Path, walks: Path) -> None:
    kills = {"name": f"{__name__}:FailsOnce", "kwargs": {"file": str(tmp_path / "is_killed"), "rank": 1}}
    pipeline = {"connectors": [kills]}
    with pytest.raises(
        WorkerLost, match=r"^a learner's process was lost, .*: run the command again to resume"
    ):
        train(make_training(tmp_path / "killed", walks, pipeline=pipeline))
    train(make_training(tmp_path / "killed", walks, pipeline=pipeline))
    train(make_training(tmp_path / "uninterrupted", walks, pipeline=pipeline))
    weights, expected = read_weights(tmp_path / "killed"), read_weights(tmp_path / "uninterrupted")
    for name, tensor in expected.items():
        np.testing.assert_array_equal(weights[name], tensor, err_msg=name)


@pytest.mark.slow
def test_error_of_one_learner_ends_all_with_its_sentence(tmp_path: Path, walks: Path) -> None:
    arguments = {"file": str(tmp_path / "has_failed"), "rank": 1, "error": True}
    fails = {"name": f"{__name__}:FailsOnce", "kwargs": arguments}
    resource = make_training(tmp_path, walks, pipeline={"connectors": [fails]})
    with pytest.raises(UserCodeError, match=r"^connector FailsOnce raised KeyError at .*: 'no such column'"):
        train(resource)
    assert not dist.is_initialized()


class FakeWorkers:
    """Learners that connect and then do nothing; those that have not ended are killed by `close`, as by loky."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, _: Any, rank: int, size: int, host: str, port: int) -> Future[Any]:
        TCPStore(host, port, size, is_master=False).add("connected", 1)
        self.futures.append(Future())
        return self.futures[-1]

    def close(self) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(ShutdownExecutorError())


class FakeGroup:
    find_cause: Callable[[], Exception | None]

    def abort(self) -> None: ...

    def broadcast(self, value: Any) -> None: ...


class FakePlacement(LocalPlacement):
    def __init__(self) -> None:
        self.workers = FakeWorkers()
        self.is_abandoned = False

    def num_learners(self, _: Any) -> tuple[int, None]:
        return 9, None

    def start_learners(self, *_: Any) -> Any:
        return self.workers

    def abandon(self) -> None:
        self.is_abandoned = True


ERROR, BUG = DataError("row 1 is invalid"), KeyError("a bug")


@pytest.mark.parametrize(
    ("results", "cause"),
    [
        ([ERROR, *[ShutdownExecutorError() for _ in range(7)]], ERROR),
        ([ERROR, *[BrokenExecutor() for _ in range(7)]], ERROR),
        ([ERROR, *[PeerLost() for _ in range(6)], BUG], ERROR),
        ([BUG, *[BrokenExecutor() for _ in range(4)], PeerLost(), PeerLost(), None], BUG),
        ([BrokenExecutor(), PeerLost(), None, *[ShutdownExecutorError() for _ in range(5)]], None),
        ([ShutdownExecutorError(), *[PeerLost() for _ in range(7)]], None),
    ],
)
def test_loss_of_learners_has_the_cause_and_abandons_only_without_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    results: list[Exception | None],
    cause: Exception | None,
) -> None:
    """The first learner is busy, and hears of the loss only later."""
    monkeypatch.setattr(learner_group, "_CAUSE_SECONDS", 0.05)
    monkeypatch.setattr(learner_group, "_GRACE_SECONDS", 0.05)
    monkeypatch.setattr(learner_group, "_connect", lambda *_: FakeGroup())
    placement = FakePlacement()
    with learner_group.start_learners(training(tmp_path, tmp_path), [], placement) as group:
        for future, result in zip(placement.workers.futures, results, strict=True):
            if result is None or isinstance(result, DataError | PeerLost):
                future.set_result(result)
            else:
                future.set_exception(result)
        time.sleep(0.3)
        assert group.find_cause() is cause  # type: ignore[attr-defined]
        assert placement.is_abandoned == (cause is None)
