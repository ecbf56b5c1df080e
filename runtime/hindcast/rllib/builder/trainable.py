"""`AlgorithmTrainable`, the base of algorithms as Ray Tune's trainables. See `hindcast.tune`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import ray
from ray.tune import PlacementGroupFactory, Trainable

from hindcast.names import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, EVALUATION_RESULTS
from hindcast.rllib.builder.algorithm import RunningAlgorithm
from hindcast.rllib.builder.config import AlgorithmConfig
from hindcast.run.stop_criteria import ESTIMATED_RETURN, VALIDATION_LOSS

_EXPECTED_METRICS: Final = {
    "evaluation_interval": (ENV_RUNNER_RESULTS, (EPISODE_RETURN_MEAN,)),
    "offline_evaluation_interval": ("offline", (ESTIMATED_RETURN, VALIDATION_LOSS)),
}
"""Option -> (section of the results of the evaluation that it requests, names of metrics in this section)."""


class AlgorithmTrainable(Trainable):
    """A trial of Tune: a `RunningAlgorithm` in a Ray actor.

    Its `config` is an `AlgorithmConfig.to_dict()` in which Tune has replaced search spaces by values.
    """

    algorithm: ClassVar[str]

    def setup(self, config: dict[str, Any]) -> None:
        """Check the options and build the algorithm.

        Raises:
            UserError: the options, the environment or the data are invalid.
        """
        algorithm_config = AlgorithmConfig(self.algorithm).update_from_dict(config)
        self._expected_options = {name for name in _EXPECTED_METRICS if algorithm_config.get(name)}
        self._running_algorithm: RunningAlgorithm = algorithm_config.build_algo()

    def step(self) -> dict[str, Any]:
        """Run one iteration and return its results; expected metrics of evaluations that have no value are NaN."""
        result = self._running_algorithm.train()
        evaluation = dict(result.get(EVALUATION_RESULTS, {}))
        for option in self._expected_options:
            section, names = _EXPECTED_METRICS[option]
            metrics = evaluation.get(section, {})
            # NaN, so that a stop criterion of Tune finds the metric's name.
            missing = {name: math.nan for name in names if metrics.get(name) is None}
            evaluation[section] = {**metrics, **missing}
        return {**result, EVALUATION_RESULTS: evaluation} if evaluation else result

    def save_checkpoint(self, checkpoint_dir: str) -> str:
        """Write a checkpoint, which `Policy.load` opens too."""
        return self._running_algorithm.save_to_path(checkpoint_dir)

    def load_checkpoint(self, checkpoint: str) -> None:
        self._running_algorithm.restore_from_path(checkpoint)

    def cleanup(self) -> None:
        if hasattr(self, "_running_algorithm"):
            self._running_algorithm.stop()

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Request one CPU for the trial and one for each process that it starts, together on one node."""
        # Tune places a trial in one bundle, which must fit on one node.
        max_node_cpus = max(
            (int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0
        )
        # A trial that requests more CPUs than any node has waits forever; one with fewer CPUs starts fewer processes.
        cpus = min(1 + _num_evaluation_processes(config), max(1, max_node_cpus))
        gpus = float(config.get("num_gpus_per_learner") or 0)
        return PlacementGroupFactory([{"CPU": cpus, **({"GPU": gpus} if gpus else {})}])


def _num_evaluation_processes(config: Mapping[str, Any]) -> int:
    """Return the number of processes that evaluate in parallel to training."""
    runners = int(config.get("evaluation_num_env_runners") or 0)
    return max(1, runners) if config.get("evaluation_parallel_to_training") else 0
