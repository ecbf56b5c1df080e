"""Algorithms that prefer good episodes beat cloning all episodes, by margins that were stated in advance."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from hindcast.datasets.prepare.opening import open_data
from layers import repeats
from support import record, recording, train, training

pytestmark = [pytest.mark.learning, pytest.mark.soak]

CARTPOLE = {"id": "CartPole-v1"}
MARGIN = 200.0
"""Of the mean return over the seeds, of at most 500."""
PENDULUM = {"id": "Pendulum-v1"}
RELU = {"fcnetHiddens": [64, 64], "fcnetActivation": "relu"}
RATES = {"actorLr": 1e-3, "criticLr": 1e-3}
SHARP = {"beta": 0.5, "expectile": 0.9}
"""Of IQL: advantages in Pendulum are tens, with which the default beta makes nearly all weights 0 or the largest."""
BETTER = 100.0
"""Than the recorded episodes' mean return in Pendulum, over two seeds."""


@pytest.fixture(scope="module")
def mixed_data(tmp_path_factory):
    """20 episodes of a PPO that reached 400 and 300 of its first policy: about as many timesteps of each."""
    folder = tmp_path_factory.mktemp("mixed")
    for name, episodes, stop in (
        ("good", 20, {"episodeReturnMean": 400, "iterations": 40}),
        ("bad", 300, {"iterations": 1}),
    ):
        expert = {
            "config": {"lr": 1e-3, "minibatchSize": 256},
            "model": {"fcnetHiddens": [64, 64]},
            "stop": stop,
        }
        record(
            recording(
                folder / name, environment=CARTPOLE, policy={"train": expert}, duration={"episodes": episodes}
            )
        )
    return str(folder / "*")


def mean_return(folder, data, algorithm, config, **of_input):
    """Return the mean return of policies that sample their actions, as the recorded ones did."""
    returns = []
    for seed in range(repeats(1, soak=3)):
        resource = training(
            folder / f"{algorithm}{seed}",
            "",
            algorithm=algorithm,
            config={"lr": 1e-3, "trainBatchSizePerLearner": 256, **config},
            environment=CARTPOLE,
            model={"fcnetHiddens": [64, 64]},
            input=[{"path": data, **of_input}],
            pipeline={"datasetNumItersPerLearner": 1000},
            evaluation={"interval": 1, "duration": 30, "explore": True},
            stop={"updates": 1000},
            seed=seed,
        )
        returns.append(train(resource).metrics["episode_return_mean"])
    return float(np.mean(returns))


def test_marwil_and_top_fraction_beat_cloning_all_episodes(mixed_data, tmp_path):
    bc_return = mean_return(tmp_path / "all", mixed_data, "BC", {})
    top = mean_return(tmp_path / "top", mixed_data, "BC", {}, top=0.05)
    marwil_return = mean_return(tmp_path / "preferred", mixed_data, "MARWIL", {"beta": 3.0})
    print(bc_return, top, marwil_return)
    assert top >= bc_return + MARGIN
    assert marwil_return >= bc_return + MARGIN


@pytest.fixture(scope="module")
def swings(tmp_path_factory):
    """50 episodes of a SAC that learned to swing the pendulum up, and 50 of its first policy."""
    folder = tmp_path_factory.mktemp("swings")
    rates = {**RATES, "alphaLr": 1e-3, "trainBatchSizePerLearner": 128}
    for name, stop in (("good", {"episodeReturnMean": -200, "iterations": 12}), ("bad", {"iterations": 2})):
        sac = {"algorithm": "SAC", "config": rates, "model": RELU, "stop": stop}
        policy = {"train": sac}
        record(recording(folder / name, environment=PENDULUM, policy=policy, duration={"episodes": 50}))
    return str(folder / "*")


@pytest.mark.minutes
@pytest.mark.parametrize(
    "run",
    [
        ("CQL", {"alphaLr": 1e-3}, {}, -700.0),
        ("IQL", {"valueLr": 1e-3, **SHARP}, {"distribution": "SquashedGaussian"}, -200.0),
        ("TD3BC", {}, {"observationFilter": "MeanStd"}, None),
        ("ReBRAC", {}, {}, None),
    ],
    ids=lambda run: run[0],
)
def test_algorithm_beats_the_recorded_policy_and_rllibs_example(run, swings, tmp_path):
    """The last number is the return at which RLlib's tuned example stops; any evaluation may reach it."""
    algorithm, config, model, rllib = run
    recorded_returns = compute_returns(swings)
    last, best = [], []
    for seed in range(2):
        resource = training(
            tmp_path / str(seed),
            swings,
            algorithm=algorithm,
            config={"trainBatchSizePerLearner": 256, **RATES, **config},
            environment=PENDULUM,
            model={**RELU, **model},
            pipeline={"datasetNumItersPerLearner": 1000},
            evaluation={"interval": 1, "duration": 40},
            stop={"updates": 6000},
            seed=seed,
        )
        returns = evaluations(train(resource).folder)
        last.append(returns[-1])
        best.append(max(returns))
    print(algorithm, recorded_returns, last, best)
    assert np.mean(last) >= recorded_returns + BETTER
    assert rllib is None or np.mean(best) >= rllib


def evaluations(folder):
    """Return the mean return of each evaluation of a run."""
    results = map(orjson.loads, (Path(folder) / "results.jsonl").read_text().splitlines())
    return [result["evaluation"]["env_runners"]["episode_return_mean"] for result in results]


def compute_returns(path):
    """Return the mean return of recorded episodes."""
    dataset = open_data([path])
    blocks = [dataset.read(unit, ["rewards"]) for unit in dataset.units]
    return sum(float(block.columns["rewards"].sum()) for block in blocks) / dataset.num_episodes
