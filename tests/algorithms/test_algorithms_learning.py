"""Each algorithm reaches its reward threshold."""

import numpy as np
import pytest
import torch

from hindcast.algorithms import build
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.evaluate.environment import EnvEvaluator, evaluate_policy
from hindcast.record.environments import environment_spaces
from hindcast.record.runner import EnvRunner
from hindcast.run.training.expert import iterate_and_evaluate
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.run.training.online_trainer import make_online_trainer
from hindcast.run.training.trainer import build_networks
from layers import repeats
from support import record, recording, train, training

pytestmark = [pytest.mark.learning, pytest.mark.soak]
seeds = pytest.mark.parametrize("seed", range(repeats(1, soak=3)))

CARTPOLE = EnvironmentSpec(id="CartPole-v1")
PPO_CONFIG = {"lr": 5e-4, "minibatchSize": 256}
DQN_CONFIG = {
    "lr": 1e-3,
    "trainBatchSizePerLearner": 64,
    "nStep": 3,
    "prioritizedReplay": True,
    "dueling": False,
    "targetNetworkUpdateFreq": 250,
    "tau": 1.0,
}
SAC_CONFIG = {"actorLr": 1e-3, "criticLr": 1e-3, "alphaLr": 1e-3, "trainBatchSizePerLearner": 128}
PENDULUM = EnvironmentSpec(id="Pendulum-v1")


@pytest.fixture(scope="module")
def expert():
    """A PPO policy that is trained in CartPole: (its mean return when it samples its actions, the policy)."""
    stop = {"episodeReturnMean": 450}
    expert_spec = {"config": PPO_CONFIG, "model": {"fcnetHiddens": [64, 64]}, "stop": stop}
    resource = recording("never written", environment={"id": CARTPOLE.id}, policy={"train": expert_spec})
    trainer = make_online_trainer(resource, resource.spec.policy.train, width=8)
    evaluator = EnvEvaluator(CARTPOLE, 20, explore=True)
    for _ in range(25):
        result = iterate_and_evaluate(trainer, evaluator, seed=0)
        mean_return = result["evaluation"]["env_runners"]["episode_return_mean"]
        if mean_return >= 450:
            break
    trainer.close()
    return mean_return, trainer.policy


def test_ppo_reaches_450_on_cartpole_sampling_its_actions(expert):
    assert expert[0] >= 450


@pytest.mark.parametrize(
    "case",
    [
        (
            "DQN",
            CARTPOLE,
            {
                "config": {**DQN_CONFIG, "lr": 2e-3, "targetNetworkUpdateFreq": 100},
                "model": {"fcnetHiddens": [64, 64]},
                "sampler": {"timestepsPerUpdate": 4},
            },
            450,
            24,
        ),
        (
            "SAC",
            PENDULUM,
            {"config": SAC_CONFIG, "model": {"fcnetHiddens": [64, 64], "fcnetActivation": "relu"}},
            -200,
            8,
        ),
    ],
    ids=lambda case: case[0],
)
@seeds
def test_algorithm_learns_online_from_its_own_episodes(case, seed):
    """The policy is trained as an expert and evaluated greedily."""
    algorithm, environment, training_spec, min_return, iterations = case
    policy = {"train": {"algorithm": algorithm, "stop": {"episodeReturnMean": min_return}, **training_spec}}
    resource = recording("never written", environment={"id": environment.id}, policy=policy, seed=seed)
    trainer = make_online_trainer(resource, resource.spec.policy.train, width=1)
    trainer.begin()
    evaluator = EnvEvaluator(environment, 10, explore=False)
    returns = [-np.inf]
    while returns[-1] < min_return and trainer.iteration < iterations:
        result = iterate_and_evaluate(trainer, evaluator, seed=0)
        returns.append(result["evaluation"]["env_runners"]["episode_return_mean"])
    trainer.close()
    assert returns[-1] >= min_return, returns


@seeds
def test_bc_clones_the_expert_from_20_episodes(expert, seed):
    runner = EnvRunner(CARTPOLE, expert[1], width=8, seed=1 + seed, explore=True)
    episodes = list(runner.play(range(20)))
    runner.close()
    obs = torch.from_numpy(np.concatenate([episode.columns["obs"][:-1] for episode in episodes]))
    actions = torch.from_numpy(np.concatenate([episode.columns["actions"] for episode in episodes]))
    algorithm = build("BC", {"lr": 1e-3})
    spaces, model = environment_spaces(CARTPOLE), ModelSpec(fcnet_hiddens=[64, 64])
    networks = build_networks(algorithm, spaces, model, environment=CARTPOLE, seed=seed)
    policy, learner = networks.make_policy_and_learner()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(300):
        rows = torch.randint(len(obs), (256,), generator=generator)
        learner.update({"obs": obs[rows], "actions": actions[rows]})
    assert evaluate_policy(policy, CARTPOLE, duration=10).summary()["episode_return_mean"] >= 450


@pytest.fixture(scope="module")
def mixed_data(expert, tmp_path_factory):
    """Inputs of equal weight: 40 episodes of the expert, and 100 at random."""
    folder = tmp_path_factory.mktemp("mixed")
    policy_folder = str(folder / "policy")
    expert[1].save(policy_folder)
    environment = {"id": CARTPOLE.id}
    expert_folder, random_folder = folder / "expert", folder / "random"
    policy = {"checkpoint": {"path": policy_folder}}
    record(recording(expert_folder, environment=environment, policy=policy), checkpoint=policy_folder)
    record(recording(random_folder, environment=environment, duration={"episodes": 100}))
    return [{"path": str(path), "weight": 0.5} for path in (expert_folder, random_folder)]


@pytest.mark.parametrize(
    "case",
    [
        ("MARWIL", {"lr": 1e-3}, 500),
        ("IQL", {"actorLr": 1e-3, "criticLr": 1e-3, "valueLr": 1e-3, "expectile": 0.8}, 1500),
        ("DiscreteCQL", {"lr": 1e-3, "minQWeight": 5.0}, 3000),
        (
            "DQN",
            {**DQN_CONFIG, "prioritizedReplay": False, "numQuantiles": 16, "targetNetworkUpdateFreq": 100},
            3000,
        ),
    ],
    ids=lambda case: case[0],
)
@seeds
def test_algorithm_reaches_the_best_policy_of_mixed_data(case, seed, mixed_data, tmp_path):
    """Half of all batches are from an expert, half from a random policy."""
    algorithm, config, updates = case
    resource = training(
        tmp_path,
        "",
        algorithm=algorithm,
        config={**config, "trainBatchSizePerLearner": 256},
        environment={"id": CARTPOLE.id},
        model={"fcnetHiddens": [64, 64]},
        input=mixed_data,
        pipeline={"datasetNumItersPerLearner": 250},
        evaluation={"interval": 1, "duration": 10},
        stop={"updates": updates, "episodeReturnMean": 450},
        seed=seed,
    )
    assert train(resource).metrics["episode_return_mean"] >= 450


@pytest.mark.minutes
@seeds
def test_dqn_learns_from_files_and_samples_together(mixed_data, tmp_path, seed):
    """Half of all batches are from the policy's own episodes, as in RLlib's page on mixed inputs of 2019."""
    resource = training(
        tmp_path,
        "",
        algorithm="DQN",
        config={**DQN_CONFIG, "numQuantiles": 16},
        environment={"id": CARTPOLE.id},
        model={"fcnetHiddens": [64, 64]},
        input=[*mixed_data, {"sampler": {"timestepsPerUpdate": 2}, "weight": 1.0}],
        pipeline={"datasetNumItersPerLearner": 1000},
        evaluation={"interval": 1, "duration": 10},
        stop={"updates": 12_000, "episodeReturnMean": 450},
        seed=seed,
    )
    assert train(resource).metrics["episode_return_mean"] >= 450


def train_and_evaluate(folder, data, algorithm, config, *, environment, updates):
    """Train for `updates` updates; return the mean return of the last policy."""
    resource = training(
        folder,
        data,
        algorithm=algorithm,
        config={"trainBatchSizePerLearner": 256, **config},
        environment=environment,
        model={"fcnetHiddens": [64, 64], "fcnetActivation": "relu"},
        pipeline={"datasetNumItersPerLearner": updates},
        evaluation={"interval": 1, "duration": 20},
        stop={"updates": updates},
    )
    return train(resource).metrics["episode_return_mean"]


HOMING = {"id": "toy_environments:Homing"}
RATES = {"actorLr": 1e-3, "criticLr": 1e-3}


@pytest.fixture(scope="module")
def random_episodes(tmp_path_factory):
    """Random episodes with a mean return of -16.5; the best policy's is about -1."""
    folder = tmp_path_factory.mktemp("random_episodes") / "data"
    record(recording(folder, environment=HOMING, duration={"episodes": 300}))
    return folder


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [
        ("TD3BC", RATES),
        ("ReBRAC", RATES),
        ("FQL", {**RATES, "alpha": 1.0, "flowSteps": 5}),
        ("FQL", {**RATES, "alpha": 1.0, "flowSteps": 5, "actionChunk": 3}),
    ],
)
def test_algorithm_stitches_an_unrecorded_path(algorithm, config, random_episodes, tmp_path):
    options = {"environment": HOMING, "updates": 500}
    assert train_and_evaluate(tmp_path, random_episodes, algorithm, config, **options) >= -4


@pytest.mark.parametrize(("config", "expected_return"), [({}, 19), ({"targetReturn": 6.0}, 6)])
def test_decision_transformer_reaches_the_requested_return(config, expected_return, tmp_path):
    """Random episodes of 12 steps with rewards of 0, 1 or 2; the best of 300 episodes has a return of 19."""
    environment = {"id": "toy_environments:Walk", "kwargs": {"shortest": 12, "longest": 12}}
    record(recording(tmp_path / "data", environment=environment, duration={"episodes": 300}))
    small_config = {"contextLength": 8, "embedSize": 32, "numLayers": 2, "lr": 3e-3}
    arguments = (tmp_path, tmp_path / "data", "DecisionTransformer", {**small_config, **config})
    mean_return = train_and_evaluate(*arguments, environment=environment, updates=100)
    assert mean_return == pytest.approx(expected_return, abs=1)


@pytest.mark.soak
@pytest.mark.minutes
def test_decision_transformer_recalls_a_cue_from_returns_of_zero_and_one(tmp_path):
    """A T-maze: random episodes of 4 to 7 steps, of which half have a return of 1; chance is 0.5."""
    environment = {"id": "toy_environments:Recall"}
    record(recording(tmp_path / "data", environment=environment, duration={"episodes": 400}))
    # with the defaults of all options and of the network
    resource = training(
        tmp_path,
        tmp_path / "data",
        algorithm="DecisionTransformer",
        environment=environment,
        pipeline={"datasetNumItersPerLearner": 100},
        evaluation={"interval": 1, "duration": 40},
        stop={"updates": 600},
    )
    assert train(resource).metrics["episode_return_mean"] >= 0.95


def count_timesteps_to(min_return, folder, **spec):
    """Return the timesteps that SAC plays until the mean of ten returns reaches `min_return`."""
    spec |= {"environment": {"id": PENDULUM.id}, "pipeline": {"datasetNumItersPerLearner": 250}}
    resource = training(folder, "", algorithm="SAC", **spec)
    trainer, evaluator = make_offline_trainer(resource, []), EnvEvaluator(PENDULUM, 10, explore=False)
    trainer.begin()
    for iteration in range(40):
        num_steps = trainer.iterate()["num_env_steps_sampled_lifetime"]
        if evaluator(trainer.policy, iteration).summary()["episode_return_mean"] >= min_return:
            break
    trainer.close()
    return num_steps


@pytest.mark.minutes
def test_sac_warm_started_from_cql_needs_half_the_timesteps(tmp_path):
    """CQL trains on 30 episodes of a half-trained SAC policy; timesteps are summed over three seeds."""
    model = {"fcnetHiddens": [64, 64], "fcnetActivation": "relu"}
    half_trained = {
        "train": {"algorithm": "SAC", "config": SAC_CONFIG, "model": model, "stop": {"iterations": 3}}
    }
    environment, data = {"id": PENDULUM.id}, tmp_path / "data"
    record(recording(data, environment=environment, policy=half_trained, duration={"episodes": 30}))
    config = {"criticLr": 1e-3, "actorLr": 3e-4, "numActions": 4, "minQWeight": 1.0}
    offline = {"algorithm": "CQL", "config": {**config, "trainBatchSizePerLearner": 128}, "model": model}
    train(training(tmp_path / "offline", data, environment=environment, stop={"updates": 2000}, **offline))
    initial_checkpoint = str(tmp_path / "offline/test/r1")
    from_scratch, warm_started = 0, 0
    for seed in range(3):
        options = {"config": SAC_CONFIG, "model": model, "seed": seed}
        from_scratch += count_timesteps_to(-200, tmp_path, input=[{"sampler": {}}], **options)
        sampler = {"warmupTimesteps": 200}
        warm_started += count_timesteps_to(
            -200, tmp_path, input=[{"sampler": sampler}], initialCheckpoint=initial_checkpoint, **options
        )
    assert warm_started <= from_scratch / 2, (warm_started, from_scratch)
