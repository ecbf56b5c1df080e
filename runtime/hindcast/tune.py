"""Ray Tune with Hindcast's algorithms in it: `from hindcast import tune` in place of `from ray import tune`.

    tuner = tune.Tuner(
        "BC",
        param_space=BCConfig().offline_data(input_="data").training(lr=tune.grid_search([1e-4, 1e-3])),
        run_config=tune.RunConfig(stop={"training_iteration": 20}),
    )
    results = tuner.fit()

Everything of `ray.tune` is here. Importing it makes the names "BC" and "PPO" trainables, and configs search spaces.
"""

from __future__ import annotations

import os
from typing import Any

# Trials keep the working directory of their script, so that relative paths mean the same in both.
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")

import ray
import ray.tune
from ray.tune.tune import _Config

from hindcast.run.python.config import AlgorithmConfig
from hindcast.run.python.trainable import BC, PPO, TRAINABLES

__all__ = ["BC", "PPO", "Tuner"]

_Config.register(AlgorithmConfig)
for _trainable in TRAINABLES:
    ray.tune.register_trainable(_trainable.algorithm, _trainable)


class Tuner(ray.tune.Tuner):
    """Ray's `Tuner`; where Ray is not running it is started here, without its dashboard."""

    def fit(self) -> Any:
        """Run all trials."""
        if not ray.is_initialized():
            ray.init(include_dashboard=False)
        return super().fit()


def __getattr__(name: str) -> Any:
    return getattr(ray.tune, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(ray.tune)})
