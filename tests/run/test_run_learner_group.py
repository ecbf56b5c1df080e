"""Several learners on this machine: processes that follow the one that runs the training."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch.distributed as dist

from hindcast.api import OfflineTraining
from hindcast.errors import UserCodeError, WorkerLost
from hindcast.pipeline.connectors import BatchConnector, Context
from hindcast.pipeline.window import Batch
from support import train, training

pytestmark = pytest.mark.slow


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


def test_two_processes_learn_what_one_learns(tmp_path: Path, walks: Path) -> None:
    model = {"dropout": 0.0}
    train(make_training(tmp_path / "one", walks, 1, model=model))
    outcome = train(make_training(tmp_path / "two", walks, 2, model=model))
    assert outcome.metrics["timesteps"] == 16 * 64
    assert not dist.is_initialized()
    weights, expected = read_weights(tmp_path / "two"), read_weights(tmp_path / "one")
    for name in [name for name in expected if name.startswith("nets/")]:
        np.testing.assert_allclose(weights[name], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


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


def test_error_of_one_learner_ends_all_with_its_sentence(tmp_path: Path, walks: Path) -> None:
    arguments = {"file": str(tmp_path / "has_failed"), "rank": 1, "error": True}
    fails = {"name": f"{__name__}:FailsOnce", "kwargs": arguments}
    resource = make_training(tmp_path, walks, pipeline={"connectors": [fails]})
    with pytest.raises(UserCodeError, match=r"^connector FailsOnce raised KeyError at .*: 'no such column'"):
        train(resource)
    assert not dist.is_initialized()
