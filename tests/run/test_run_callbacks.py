"""Callbacks of users in trainings from YAML and in Python, and the errors in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hindcast import BCConfig, Callbacks, PPOConfig
from hindcast.errors import Interrupted, SpecError, UserCodeError
from layers import slow_except
from run_results import read_results
from support import WALK, StopAfter, read_all, record, recording, train, training

THIS_MODULE = "test_run_callbacks"


class CallLog(Callbacks):
    """Records its calls and adds a number to results."""

    events: ClassVar[list[str]] = []

    def _log_event(self, event: str, algorithm: Any) -> None:
        assert algorithm.get_policy().module is algorithm.get_module()
        self.events.append(f"{event} {algorithm.iteration}")

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._log_event("init", algorithm)

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._log_event("loaded", algorithm)

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        self._log_event("result", algorithm)
        result["doubled"] = 2 * result["training_iteration"]

    def on_evaluate_start(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._log_event("start", algorithm)

    def on_evaluate_end(self, *, algorithm: Any, evaluation_metrics: dict[str, Any], **kwargs: Any) -> None:
        assert evaluation_metrics["env_runners"]["num_episodes"] == 2
        self._log_event(f"end of {evaluation_metrics['training_iteration']}", algorithm)


class RaisingCallbacks(Callbacks):
    def on_train_result(self, **kwargs: Any) -> None:
        raise KeyError("no such thing")


class UnwritableResult(Callbacks):
    def on_train_result(self, *, result: dict[str, Any], **kwargs: Any) -> None:
        result["object"] = object()


class ClearsResult(Callbacks):
    def on_train_result(self, *, result: dict[str, Any], **kwargs: Any) -> None:
        result.clear()


class OverridesUnsupportedMethod(Callbacks):
    def on_learn_on_batch(self, **kwargs: Any) -> None:
        pass


class EpisodeCallLog(Callbacks):
    """Checks and logs the calls of episode methods."""

    def on_environment_created(self, *, env: Any, env_context: dict[str, Any], **kwargs: Any) -> None:
        self.environments = len(env.envs)
        self.steps = 0

    def on_episode_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        assert len(episode) == 0
        assert len(episode.get_observations()) == 1
        assert env_index < self.environments

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        self.steps += 1
        assert not np.array_equal(episode.get_observations(-1), episode.get_observations(-2))

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, rl_module: Any, **kwargs: Any) -> None:
        assert episode.is_done
        metrics_logger.log_value("longest", len(episode), reduce="max")
        metrics_logger.log_value(("returns", "sum"), episode.get_return(), reduce="sum")

    def on_sample_end(self, *, samples: list[Any], metrics_logger: Any, **kwargs: Any) -> None:
        metrics_logger.log_value("sampled", sum(map(len, samples)), reduce="sum")
        assert self.steps == sum(map(len, samples))
        self.steps = 0


class RaisesAtEpisodeEnd(Callbacks):
    def on_episode_end(self, **kwargs: Any) -> None:
        raise LookupError("no such episode")


def log_twice(*, result: dict[str, Any], metrics_logger: Any, **kwargs: Any) -> None:
    """A function as a callback."""
    metrics_logger.log_value("twice", 2 * result["training_iteration"])


@pytest.fixture
def events() -> list[str]:
    CallLog.events.clear()
    return CallLog.events


def make_spec(*names: str, **fields: Any) -> dict[str, Any]:
    return {"callbacks": [f"{THIS_MODULE}:{name}" for name in names], **fields}


def test_training_calls_callbacks(walks: Path, tmp_path: Path, events: list[str]) -> None:
    evaluation_spec = {"environment": WALK, "evaluation": {"interval": 2, "duration": 2}}
    resource = training(tmp_path, walks, **make_spec("CallLog", **evaluation_spec))
    with pytest.raises(Interrupted):
        train(resource, StopAfter(20))
    train(resource)
    # The resumed run calls on_algorithm_init right before on_checkpoint_loaded.
    first_events, resumed_events = (
        events[: events.index("loaded 2") - 1],
        events[events.index("loaded 2") - 1 :],
    )
    assert first_events == ["init 0", "result 1", "start 2", "end of 2 2", "result 2"]
    assert resumed_events == ["init 2", "loaded 2", "result 3"]
    assert [result["doubled"] for result in read_results(tmp_path)] == [2, 4, 6]


@pytest.mark.slow
def test_parallel_evaluation_calls_callbacks_at_launch_and_collection(
    walks: Path, tmp_path: Path, events: list[str]
) -> None:
    evaluation = {"interval": 1, "duration": 2, "parallelToTraining": True}
    train(training(tmp_path, walks, **make_spec("CallLog", environment=WALK, evaluation=evaluation)))
    assert events == [
        *("init 0", "result 1", "start 1"),
        *("end of 1 2", "result 2", "start 2"),
        *("end of 2 3", "result 3", "start 3", "end of 3 3"),
    ]


def test_algorithm_in_python_calls_callbacks(walks: Path, tmp_path: Path, events: list[str]) -> None:
    config = (
        BCConfig()
        .environment("toy_environments:Walk")
        .offline_data(input_=str(walks), dataset_num_iters_per_learner=1)
        .evaluation(evaluation_interval=2, evaluation_duration=2)
        .callbacks(callbacks_class=CallLog)
    )
    with config.build_algo() as algo:
        assert [algo.train()["doubled"] for _ in range(2)] == [2, 4]
        algo.restore_from_path(algo.save_to_path(tmp_path / "saved"))
    assert events == ["init 0", "result 1", "start 2", "end of 2 2", "result 2", "loaded 2"]
    assert config.to_resource().spec.callbacks == [f"{THIS_MODULE}:CallLog"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "RaisingCallbacks",
            UserCodeError,
            r"RaisingCallbacks.on_train_result raised KeyError at .*test_run_callbacks.py:\d+",
        ),
        ("UnwritableResult", UserCodeError, "UnwritableResult.on_train_result raised TypeError"),
        (
            "ClearsResult",
            UserCodeError,
            r"ClearsResult.on_train_result at .*\.py:\d+ removed or replaced '\w+' of the result",
        ),
        (
            "OverridesUnsupportedMethod",
            SpecError,
            "OverridesUnsupportedMethod overrides on_learn_on_batch, which is never called: a connector of",
        ),
        (
            "Missing",
            SpecError,
            f"spec.callbacks is '{THIS_MODULE}:Missing': the module '{THIS_MODULE}' has no 'Missing'",
        ),
        ("WALK", SpecError, "which is not a subclass of Callbacks"),
    ],
)
def test_invalid_callbacks_are_reported(
    name: str, error: type[Exception], message: str, walks: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        train(training(tmp_path, walks, **make_spec(name)))


@pytest.mark.parametrize("is_parallel", slow_except([False], [False, True]))
def test_evaluation_calls_episode_callbacks(walks: Path, tmp_path: Path, is_parallel: bool) -> None:
    evaluation = {"interval": 1, "duration": 5, "parallelToTraining": is_parallel}
    resource = training(
        tmp_path, walks, **make_spec("EpisodeCallLog", environment=WALK, evaluation=evaluation)
    )
    train(resource)
    result = read_results(tmp_path)[1]["evaluation"]["env_runners"]
    assert result["num_episodes"] == 5
    assert result["sampled"] == result["num_env_steps"]
    assert 0 < result["longest"] <= result["num_env_steps"]
    assert result["returns"]["sum"] == pytest.approx(5 * result["episode_return_mean"])


def test_recording_calls_episode_callbacks_stays_equal_and_reports_their_errors(tmp_path: Path) -> None:
    record(recording(tmp_path / "with_callbacks", environment=WALK, **make_spec("EpisodeCallLog")))
    record(recording(tmp_path / "without_callbacks", environment=WALK))
    with_callbacks, without_callbacks = (
        read_all(tmp_path / name) for name in ("with_callbacks", "without_callbacks")
    )
    assert {leaf: column.tolist() for leaf, column in with_callbacks.columns.items()} == {
        leaf: column.tolist() for leaf, column in without_callbacks.columns.items()
    }
    with pytest.raises(
        UserCodeError, match=r"RaisesAtEpisodeEnd.on_episode_end raised LookupError at .*\.py:\d+"
    ):
        record(recording(tmp_path / "raising", environment=WALK, **make_spec("RaisesAtEpisodeEnd")))


def test_rollout_calls_episode_callbacks() -> None:
    config = (
        PPOConfig()
        .environment("toy_environments:Walk")
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    )
    config.env_runners(num_envs_per_env_runner=2).callbacks(EpisodeCallLog)
    with config.build_algo() as algo:
        result = algo.train()
    assert result["env_runners"]["sampled"] == 64


def test_callbacks_may_be_functions_but_resource_requires_importable_ones(walks: Path) -> None:
    def local_function(*, algorithm: Any, **kwargs: Any) -> None:
        iterations.append(algorithm.iteration)

    iterations: list[int] = []
    config = (
        BCConfig()
        .environment("toy_environments:Walk")
        .offline_data(input_=str(walks), dataset_num_iters_per_learner=1)
        .callbacks(on_train_result=log_twice)
    )
    assert config.to_resource().spec.callbacks == [
        f"hindcast.rllib.callbacks:on_train_result.{THIS_MODULE}.log_twice"
    ]
    config.callbacks(on_algorithm_init=[local_function, local_function])
    with config.build_algo() as algo:
        assert [algo.train()["twice"] for _ in range(2)] == [2, 4]
    assert iterations == [0, 0]
    with pytest.raises(SpecError, match="local_function cannot be imported by name"):
        config.to_resource()
    with pytest.raises(SpecError, match="on_train_result is 3, expected a function"):
        BCConfig().offline_data(input_="x").callbacks(on_train_result=3).to_resource()
