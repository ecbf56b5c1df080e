"""Algorithms as Ray Tune's trainables, in one small search. The examples run larger searches."""

from __future__ import annotations

import logging
import math
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from hindcast import AlgorithmConfig, BCConfig, Policy
from hindcast.algorithms import REGISTRY
from hindcast.errors import SpecError
from toy_environments import Walk


def test_every_algorithm_is_a_trainable() -> None:
    from ray.tune.registry import TRAINABLE_CLASS, _global_registry

    from hindcast import tune

    for name in REGISTRY:
        trainable = getattr(tune, name)
        assert trainable.algorithm == name
        assert _global_registry.get(TRAINABLE_CLASS, name) is trainable
        assert pickle.loads(pickle.dumps(trainable)) is trainable


def test_cleanup_of_a_trial_stops_its_algorithm() -> None:
    from hindcast import tune

    events: list[str] = []
    trial = object.__new__(tune.BC)
    trial.cleanup()  # `setup` failed
    trial._running_algorithm = SimpleNamespace(stop=lambda: events.append("stop"))
    trial.cleanup()
    assert events == ["stop"]


def bc_config(data: Path) -> BCConfig:
    return (
        BCConfig()
        .environment(Walk)
        .offline_data(input_=data, dataset_num_iters_per_learner=5)
        .training(train_batch_size_per_learner=16)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .evaluation(evaluation_interval=2, evaluation_duration=3)
    )


@pytest.mark.parametrize("entry_point", ["run", "Tuner.fit", "Tuner.restore"])
def test_search_connects_to_ray_first(monkeypatch: pytest.MonkeyPatch, entry_point: str) -> None:
    """Hindcast connects, since Ray itself would join any cluster on the machine."""
    from hindcast import tune

    events: list[str] = []
    monkeypatch.setattr(tune, "connect", lambda: events.append("connected"))
    monkeypatch.setattr(f"ray.tune.{entry_point}", lambda *_, **__: events.append("started"))
    {
        "run": lambda: tune.run("BC"),
        "Tuner.fit": lambda: tune.Tuner("BC").fit(),
        "Tuner.restore": lambda: tune.Tuner.restore("folder", "BC"),
    }[entry_point]()
    assert events == ["connected", "started"]


@pytest.mark.parametrize(
    ("algorithm", "metric", "message"),
    [
        (
            "PPO",
            "evaluation/env_runners/episode_return_mean",
            r"set \.evaluation\(evaluation_interval=\.\.\.\)",
        ),
        (
            "BC",
            "evaluation/env_runners/episode_return_mean",
            r"set \.evaluation\(evaluation_interval=\.\.\.\)",
        ),
        ("BC", "evaluation/offline/validation_loss", "offline_evaluation_interval"),
        (
            "BC",
            "env_runners/episode_return_mean",
            "BC plays no episodes while it trains, .* stop by evaluation/env_",
        ),
    ],
)
def test_stop_metric_that_is_never_reported_is_refused(algorithm: str, metric: str, message: str) -> None:
    from hindcast import tune

    config = AlgorithmConfig(algorithm).environment("CartPole-v1").offline_data(input_="data")
    run_config = tune.RunConfig(stop={metric: 450})
    for param_space in (config, config.to_dict()):
        with pytest.raises(SpecError, match=message):
            tune.Tuner(algorithm, param_space=param_space, run_config=run_config)
        with pytest.raises(SpecError, match=message):
            tune.run(algorithm, config=param_space, stop={metric: 450})


def test_stop_metric_that_is_reported_is_accepted() -> None:
    from hindcast import tune

    config = bc_config(Path("data")).evaluation(
        offline_evaluation_interval=tune.choice([1, 2]), offline_evaluation_held_out=0.1
    )
    metrics = (
        "evaluation/env_runners/episode_return_mean",
        "evaluation/offline/validation_loss",
        "training_iteration",
    )
    tune.Tuner("BC", param_space=config, run_config=tune.RunConfig(stop=dict.fromkeys(metrics, 1)))
    config = AlgorithmConfig("PPO").environment("CartPole-v1")
    stop = {"env_runners/episode_return_mean": 450}
    tune.Tuner("PPO", param_space=config, run_config=tune.RunConfig(stop=stop))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
class TestResources:
    def test_resources_count_trial_and_processes_up_to_a_node(self) -> None:
        from hindcast.rllib.builder.trainables import BC

        def cpus(**options: object) -> float:
            return BC.default_resource_request(options).bundles[0]["CPU"]

        assert cpus() == 1
        assert cpus(evaluation_num_env_runners=1) == 1
        assert cpus(evaluation_parallel_to_training=True) == 2
        assert cpus(evaluation_parallel_to_training=True, evaluation_num_env_runners=8) == 4
        assert cpus(map_batches_kwargs={"concurrency": 2}) == 1  # the trial's own process reads

    def test_resources_include_gpus(self) -> None:
        from hindcast.rllib.builder.trainables import BC

        assert BC.default_resource_request({"num_gpus_per_learner": 1}).bundles == [{"CPU": 1, "GPU": 1}]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
@pytest.mark.filterwarnings("ignore")
def test_search_over_a_config_finds_the_best(
    walks: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from hindcast import tune

    config = bc_config(walks).training(lr=tune.grid_search([1e-3, "fast"]))
    with caplog.at_level(logging.CRITICAL):
        results = tune.Tuner(
            "BC",
            param_space=config,
            run_config=tune.RunConfig(
                stop={"evaluation/training_iteration": 2},
                storage_path=str(tmp_path),
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
                verbose=0,
            ),
        ).fit()
    assert "lr is 'fast', expected a number" in str(results.errors[0])
    (best_result,) = [result for result in results if result.error is None]
    assert best_result.metrics["training_iteration"] == 2
    assert best_result.metrics["evaluation"]["env_runners"]["num_episodes"] == 3
    assert best_result.config["lr"] == 1e-3
    assert len(best_result.best_checkpoints) == 2
    with bc_config(walks).training(lr=1e-3).build_algo() as algo:
        for _ in range(2):
            algo.train()
        assert Policy.load(best_result.checkpoint.path).digest == algo.get_policy().digest
        algo.restore_from_path(best_result.checkpoint.path)
        assert algo.iteration == 2


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_trial_resumes_from_its_checkpoint(walks: Path, tmp_path: Path) -> None:
    from hindcast.rllib.builder.trainables import BC

    config = bc_config(walks).evaluation(offline_evaluation_interval=2, offline_evaluation_held_out=0.3)
    first = BC(config.to_dict())
    result = first.step()
    assert math.isnan(result["evaluation"]["env_runners"]["episode_return_mean"])
    assert math.isnan(result["evaluation"]["offline"]["estimated_return"])
    assert math.isnan(result["evaluation"]["offline"]["validation_loss"])
    first.save_checkpoint(str(tmp_path))
    expected = first.step()
    assert expected["evaluation"]["offline"]["validation_loss"] > 0
    assert math.isnan(expected["evaluation"]["offline"]["estimated_return"])  # no estimates were requested
    first.cleanup()
    second = BC(config.to_dict())
    second.load_checkpoint(str(tmp_path))
    assert second.step()["learners"] == expected["learners"]
    second.cleanup()
