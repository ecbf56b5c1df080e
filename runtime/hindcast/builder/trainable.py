"""Algorithms as Ray Tune's trainables: `tune.Tuner("BC", param_space=config, ...)`. See `hindcast.tune`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import ray
from ray.tune import PlacementGroupFactory, Trainable

from hindcast.builder.algorithm import RunningAlgorithm
from hindcast.builder.config import AlgorithmConfig
from hindcast.builder.option_names import named_class
from hindcast.names import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, EVALUATION_RESULTS
from hindcast.run.stop_criteria import ESTIMATED_RETURN, VALIDATION_LOSS

_AWAITED: Final = {
    "evaluation_interval": (ENV_RUNNER_RESULTS, (EPISODE_RETURN_MEAN,)),
    "offline_evaluation_interval": ("offline", (ESTIMATED_RETURN, VALIDATION_LOSS)),
}
"""Option -> the part of an evaluation's results that it asks for, and the figures in it."""


class AlgorithmTrainable(Trainable):
    """A trial: one `RunningAlgorithm` in an actor of Tune's; `config` is `AlgorithmConfig.to_dict()`, resolved."""

    algorithm: ClassVar[str]

    def setup(self, config: dict[str, Any]) -> None:
        """Check the options and build.

        Raises:
            UserError: what is wrong with them, the environment or the data.
        """
        built = AlgorithmConfig(self.algorithm).update_from_dict(config)
        self._awaited = {name for name in _AWAITED if built.get(name)}
        self._running: RunningAlgorithm = built.build_algo()

    def step(self) -> dict[str, Any]:
        """One iteration. Figures of evaluations that are still to come, or that could not be computed, are NaN, so that
        a stop criterion finds their names.
        """
        result = self._running.train()
        found = dict(result.get(EVALUATION_RESULTS, {}))
        for option in self._awaited:
            part, names = _AWAITED[option]
            known = found.get(part, {})
            missing = {name: math.nan for name in names if known.get(name) is None}
            found[part] = {**known, **missing}
        return {**result, EVALUATION_RESULTS: found} if found else result

    def save_checkpoint(self, checkpoint_dir: str) -> str:
        """A checkpoint of ours; `Policy.load` opens it."""
        return self._running.save_to_path(checkpoint_dir)

    def load_checkpoint(self, checkpoint: str) -> None:
        self._running.restore_from_path(checkpoint)

    def cleanup(self) -> None:
        if hasattr(self, "_running"):
            self._running.stop()

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """One CPU for the trial and one for each process that it starts, together on one node.

        Never more than the largest node has: the processes are then fewer, and the trial is not kept waiting for ever.
        """
        largest = max(
            (int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0
        )
        cpus = min(1 + _processes(config), max(1, largest))
        gpus = float(config.get("num_gpus_per_learner") or 0)
        return PlacementGroupFactory([{"CPU": cpus, **({"GPU": gpus} if gpus else {})}])


def __getattr__(name: str) -> type[AlgorithmTrainable]:
    """The trainable of a registered algorithm, which bears its name."""
    return named_class(name, name, AlgorithmTrainable, globals(), "algorithm")


def _processes(config: Mapping[str, Any]) -> int:
    """Processes that evaluate in parallel to training."""
    runners = int(config.get("evaluation_num_env_runners") or 0)
    return max(1, runners) if config.get("evaluation_parallel_to_training") else 0
