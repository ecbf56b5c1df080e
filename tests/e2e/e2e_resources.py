"""The resources that the tests apply: small enough for one node with two processors."""

from __future__ import annotations

from typing import Any

from e2e_kube import Object

API_VERSION = "hindcast.dev/v1alpha1"
EXPERT_POLICY: Object = {
    "train": {
        "algorithm": "PPO",
        "config": {"lr": 3.0e-4, "numEpochs": 6, "trainBatchSizePerLearner": 4096},
        "model": {"fcnetHiddens": [64, 64]},
        "stop": {"episodeReturnMean": 300},
    }
}


def make_recording(name: str, **spec: Any) -> Object:
    """Return an OfflineRecording; by default of 60 random episodes of CartPole with one runner."""
    defaults = {
        "environment": {"id": "CartPole-v1"},
        "policy": {"random": {}},
        "duration": {"episodes": 60},
        "runners": {"replicas": 1, "envsPerRunner": 4},
        "output": {"path": f"{name}-data", "maxRowsPerFile": 10},
    }
    return _resource("OfflineRecording", name, {**defaults, **spec})


def make_training(name: str, data: str | None = None, **spec: Any) -> Object:
    """Return an OfflineTraining; by default of BC on the dataset `data`, on a CPU learner without data workers.

    Fields that are None are left out.
    """
    defaults = {
        "algorithm": "BC",
        "config": {"lr": 1.0e-3, "trainBatchSizePerLearner": 64},
        "model": {"fcnetHiddens": [32]},
        "input": [{"path": data}],
        "pipeline": {"dataWorkers": {"replicas": 0}, "datasetNumItersPerLearner": 200},
        "stop": {"iterations": 20},
        "checkpoint": {"path": "runs", "every": 2},
    }
    return _resource("OfflineTraining", name, {**defaults, **spec})


def make_code_config_map(**modules: str) -> Object:
    """Return the ConfigMap `code` with Python modules, by name. `CODE_CLUSTER` mounts it into the pods of a run."""
    files = {f"{name}.py": text for name, text in modules.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": files}


CODE_CLUSTER: Object = {"code": {"configMap": {"name": "code"}}}


def slow_environment_code(seconds: float) -> str:
    """Return a module with the class `Slow`: CartPole that sleeps for some seconds before each episode.

    A run with it lasts long, but does not load the processors.
    """
    return f"""\
import time

from gymnasium.envs.classic_control import CartPoleEnv


class Slow(CartPoleEnv):
    def reset(self, **options):
        time.sleep({seconds})
        return super().reset(**options)
"""


def slow_training_code(file: str) -> str:
    """Return a module with the callbacks `SlowTraining`: an iteration takes two seconds while a file exists.

    A training with it lasts long, but does not load the processors, and can be speeded up in the middle of a run.
    """
    return f"""\
import time
from pathlib import Path

from hindcast import Callbacks


class SlowTraining(Callbacks):
    def on_train_result(self, **_):
        if Path("{file}").exists():
            time.sleep(2.0)
"""


def _resource(kind: str, name: str, spec: Object) -> Object:
    fields = {field: value for field, value in spec.items() if value is not None}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": fields}
