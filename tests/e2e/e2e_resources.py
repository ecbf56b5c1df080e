"""The resources that the tests apply: small enough for one node with two processors."""

from __future__ import annotations

from typing import Any

from e2e_kube import Object

API = "hindcast.dev/v1alpha1"
EXPERT: Object = {
    "train": {
        "algorithm": "PPO",
        "config": {"lr": 3.0e-4, "numEpochs": 6, "trainBatchSizePerLearner": 4096},
        "model": {"fcnetHiddens": [64, 64]},
        "stop": {"episodeReturnMean": 300},
    }
}


def recording(name: str, **spec: Any) -> Object:
    """An OfflineRecording; by default 60 random episodes of CartPole with one runner."""
    defaults = {
        "environment": {"id": "CartPole-v1"},
        "policy": {"random": {}},
        "duration": {"episodes": 60},
        "runners": {"replicas": 1, "envsPerRunner": 4},
        "output": {"path": f"{name}-data", "maxRowsPerFile": 10},
    }
    return _resource("OfflineRecording", name, {**defaults, **spec})


def training(name: str, data: str | None = None, **spec: Any) -> Object:
    """An OfflineTraining; by default BC on the dataset `data`, on a CPU learner without data workers.

    A field that is None is left out.
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


def code_config_map(**modules: str) -> Object:
    """The ConfigMap `code` with modules of a user's, and `IN_PODS` brings it to the pods."""
    files = {f"{name}.py": text for name, text in modules.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": files}


CODE_CLUSTER: Object = {"code": {"configMap": {"name": "code"}}}


def slow_environment(seconds: float) -> str:
    """A module with CartPole as `Slow`, whose episodes begin so late: time goes by, and no processor is busy."""
    return f"""\
import time

from gymnasium.envs.classic_control import CartPoleEnv


class Slow(CartPoleEnv):
    def reset(self, **options):
        time.sleep({seconds})
        return super().reset(**options)
"""


def _resource(kind: str, name: str, spec: Object) -> Object:
    fields = {field: value for field, value in spec.items() if value is not None}
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": fields}
