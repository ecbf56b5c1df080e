"""Algorithms that prefer good episodes beat cloning of all episodes, by margins fixed in advance."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from hindcast.datasets.prepare.opening import open_data
from support import record, recording, train, training

pytestmark = [pytest.mark.learning, pytest.mark.soak, pytest.mark.minutes]

CARTPOLE = {"id": "CartPole-v1"}
MARGIN = 200.0
"""Required difference between mean returns over the seeds; a return is at most 500."""
PENDULUM = {"id": "Pendulum-v1"}
RELU = {"fcnetHiddens": [64, 64], "fcnetActivation": "relu"}
RATES = {"actorLr": 1e-3, "criticLr": 1e-3}
IQL_CONFIG = {"beta": 0.5, "expectile": 0.9}
"""Options of IQL. Advantages in Pendulum are tens: with the default beta nearly all weights are 0 or the maximum."""
PENDULUM_MARGIN = 100.0
"""Required improvement on the mean return of the recorded episodes in Pendulum, over two seeds."""


@pytest.fixture(scope="module")
def mixed_data(tmp_path_factory):
    """20 episodes of a PPO policy that reached a return of 400, and 300 of its first policy: about as long."""
    folder = tmp_path_factory.mktemp("mixed")
    for name, episodes, stop in (
        ("good", 20, {"episodeReturnMean": 400, "iterations": 40}),
        ("bad", 300, {"iterations": 1}),
    ):
        config = {"lr": 1e-3, "minibatchSize": 256}
        policy = {"train": {"config": config, "model": {"fcnetHiddens": [64, 64]}, "stop": stop}}
        duration = {"episodes": episodes}
        record(recording(folder / name, environment=CARTPOLE, policy=policy, duration=duration))
    return str(folder / "*")


def train_and_evaluate(folder, data, algorithm, config, **input_options):
    """Return the mean return of policies that sample their actions, as the recorded policies did."""
    returns = []
    for seed in range(3):
        resource = training(
            folder / f"{algorithm}{seed}",
            "",
            algorithm=algorithm,
            config={"lr": 1e-3, "trainBatchSizePerLearner": 256, **config},
            environment=CARTPOLE,
            model={"fcnetHiddens": [64, 64]},
            input=[{"path": data, **input_options}],
            pipeline={"datasetNumItersPerLearner": 1000},
            evaluation={"interval": 1, "duration": 30, "explore": True},
            stop={"updates": 1000},
            seed=seed,
        )
        returns.append(train(resource).metrics["episode_return_mean"])
    return float(np.mean(returns))


def test_marwil_and_top_fraction_beat_cloning_all_episodes(mixed_data, tmp_path):
    bc_return = train_and_evaluate(tmp_path / "all", mixed_data, "BC", {})
    top_return = train_and_evaluate(tmp_path / "top", mixed_data, "BC", {}, top=0.05)
    marwil_return = train_and_evaluate(tmp_path / "preferred", mixed_data, "MARWIL", {"beta": 3.0})
    print(bc_return, top_return, marwil_return)
    assert top_return >= bc_return + MARGIN
    assert marwil_return >= bc_return + MARGIN


@pytest.fixture(scope="module")
def pendulum_data(tmp_path_factory):
    """50 episodes of a SAC policy that swings the pendulum up, and 50 of an early one."""
    folder = tmp_path_factory.mktemp("pendulum")
    rates = {**RATES, "alphaLr": 1e-3, "trainBatchSizePerLearner": 128}
    for name, stop in (("good", {"episodeReturnMean": -200, "iterations": 12}), ("bad", {"iterations": 2})):
        sac = {"algorithm": "SAC", "config": rates, "model": RELU, "stop": stop}
        policy = {"train": sac}
        record(recording(folder / name, environment=PENDULUM, policy=policy, duration={"episodes": 50}))
    return str(folder / "*")


@pytest.mark.parametrize(
    "case",
    [
        ("CQL", {"alphaLr": 1e-3}, {}, -700.0),
        ("IQL", {"valueLr": 1e-3, **IQL_CONFIG}, {"distribution": "SquashedGaussian"}, -200.0),
        ("TD3BC", {}, {"observationFilter": "MeanStd"}, None),
        ("ReBRAC", {}, {}, None),
    ],
    ids=lambda case: case[0],
)
def test_algorithm_beats_the_recorded_policy_and_rllibs_example(case, pendulum_data, tmp_path):
    """The last number of a case is the return at which RLlib's tuned example stops; one evaluation must reach it."""
    algorithm, config, model, rllib_return = case
    recorded_return = mean_recorded_return(pendulum_data)
    last_returns, best_returns = [], []
    for seed in range(2):
        resource = training(
            tmp_path / str(seed),
            pendulum_data,
            algorithm=algorithm,
            config={"trainBatchSizePerLearner": 256, **RATES, **config},
            environment=PENDULUM,
            model={**RELU, **model},
            pipeline={"datasetNumItersPerLearner": 1000},
            evaluation={"interval": 1, "duration": 40},
            stop={"updates": 6000},
            seed=seed,
        )
        returns = read_evaluation_returns(train(resource).folder)
        last_returns.append(returns[-1])
        best_returns.append(max(returns))
    print(algorithm, recorded_return, last_returns, best_returns)
    assert np.mean(last_returns) >= recorded_return + PENDULUM_MARGIN
    assert rllib_return is None or np.mean(best_returns) >= rllib_return


def read_evaluation_returns(folder):
    """Return the mean return of each evaluation of a run."""
    results = map(orjson.loads, (Path(folder) / "results.jsonl").read_text().splitlines())
    return [result["evaluation"]["env_runners"]["episode_return_mean"] for result in results]


def mean_recorded_return(path):
    """Return the mean return of recorded episodes."""
    dataset = open_data([path])
    blocks = [dataset.read(unit, ["rewards"]) for unit in dataset.units]
    return sum(float(block.columns["rewards"].sum()) for block in blocks) / dataset.num_episodes
