"""Ray Tune with Hindcast's algorithms: write `from hindcast import tune` instead of `from ray import tune`.

    tuner = tune.Tuner(
        "BC",
        param_space=BCConfig().offline_data(input_="data").training(lr=tune.grid_search([1e-4, 1e-3])),
        run_config=tune.RunConfig(stop={"training_iteration": 20}),
    )
    results = tuner.fit()

The module has everything that `ray.tune` has. Importing it registers the algorithms as trainables ("BC"; `tune.BC` is
the class of the trainable, `hindcast.BC` the class of the algorithm) and makes `param_space` accept configs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

# Ray would change the working directory of trials, so that relative paths would mean other files than in the script.
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")

import ray.tune
from ray.tune.tune import _Config

from hindcast.api.options import algorithms, schemas
from hindcast.errors import SpecError
from hindcast.names import ENV_RUNNER_RESULTS, EVALUATION_RESULTS
from hindcast.ray_session import connect
from hindcast.rllib.builder import trainables
from hindcast.rllib.builder.config import AlgorithmConfig
from hindcast.rllib.builder.option_values import has_recorded_input, input_entries

_EVALUATION_OPTIONS: Final = {
    f"{EVALUATION_RESULTS}/offline/": "offline_evaluation_interval",
    f"{EVALUATION_RESULTS}/": "evaluation_interval",
}
"""Section of results -> the option that requests it."""

# Tune only accepts dictionaries and instances of its `_Config` as search spaces.
_Config.register(AlgorithmConfig)
for _name in schemas():
    ray.tune.register_trainable(_name, getattr(trainables, _name))


class Tuner(ray.tune.Tuner):
    """Ray's `Tuner`. `fit` and `restore` first connect this process to Ray, see `ray_session.connect`."""

    def __init__(self, trainable: Any = None, **options: Any) -> None:
        algorithm = _to_trainable(trainable)
        _check_stop(algorithm, options.get("param_space"), getattr(options.get("run_config"), "stop", None))
        super().__init__(algorithm, **options)

    @classmethod
    def restore(cls, *args: Any, **kwargs: Any) -> ray.tune.Tuner:
        """Connect to Ray, and return the tuner of an earlier search, whose `fit` resumes it."""
        connect()
        return super().restore(*args, **kwargs)

    def fit(self) -> Any:
        """Connect to Ray, and run all trials."""
        connect()
        return super().fit()


def run(run_or_experiment: Any, *args: Any, **kwargs: Any) -> Any:
    """Connect to Ray as `Tuner.fit` does, and call Ray's `tune.run`."""
    algorithm = _to_trainable(run_or_experiment)
    _check_stop(algorithm, kwargs.get("config"), kwargs.get("stop"))
    connect()
    return ray.tune.run(algorithm, *args, **kwargs)


def _to_trainable(trainable: Any) -> Any:
    """Replace an algorithm's class (`hindcast.BC`) by the name registered with Tune; return anything else unchanged."""
    return getattr(trainable, "algorithm_name", trainable)


def _check_stop(algorithm: Any, options: Any, stop: Any) -> None:
    """Refuse a stop criterion on a metric that no trial ever reports, since the trials would never end.

    Raises:
        SpecError: the options request no evaluation with the metric.
    """
    if algorithm not in schemas() or not isinstance(stop, Mapping):
        return
    options = options or {}
    for metric in stop:
        option = next(
            (option for section, option in _EVALUATION_OPTIONS.items() if metric.startswith(section)), None
        )
        if option is not None and not options.get(option):
            raise SpecError(
                f"stop: no trial ever reports {metric}, so it would never end: set .evaluation({option}=...)."
            )
        plays = algorithm in algorithms("OfflineRecording") and not has_recorded_input(options)
        if metric.startswith(f"{ENV_RUNNER_RESULTS}/") and not (plays or "sampler" in input_entries(options)):
            raise SpecError(
                f"stop: {algorithm} plays no episodes while it trains, so no trial ever reports {metric}: stop by "
                f"{EVALUATION_RESULTS}/{metric}."
            )


def __getattr__(name: str) -> Any:
    return getattr(trainables if name in schemas() else ray.tune, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *schemas(), *dir(ray.tune)})
