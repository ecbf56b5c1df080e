"""Configs with random data, algorithms, options and orders of calls train, or raise a UserError with a message."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from test_rllib_options import SAMPLES
from test_rllib_prelearner_kinds import (
    HOOKS,
    KINDS,
    SPACES,
    MapsAny,
    Postprocesses,
    Reads240,
    WithoutKwargs,
    data,  # noqa: F401
)

from hindcast import (
    AlgorithmConfig,
    ConnectorV2,
    EpisodeReplayBuffer,
    OfflineData,
    PrioritizedEpisodeReplayBuffer,
)
from hindcast.errors import UserError
from hindcast.rllib.builder.options import OPTIONS
from hindcast.rllib.connectors import library
from layers import repeats

NUM_VARIATIONS = repeats(12, 1000)
ALGORITHMS = ("BC", "BC", "BC", "MARWIL", "MARWIL", "DQN", "CQL", "IQL", "IQL", "DecisionTransformer")
WRONG_VALUES = (
    "yes",
    -1,
    2.5,
    [],
    {},
    [None],
    True,
    float("nan"),
    "no such",
    object(),
    np.zeros(2),
    {"a": {"b": 1}},
)
BUFFER_OPTIONS: tuple[dict[str, Any], ...] = (
    {"prelearner_buffer_class": EpisodeReplayBuffer},
    {"prelearner_buffer_class": PrioritizedEpisodeReplayBuffer, "prelearner_buffer_kwargs": {"alpha": 0.5}},
    {"prelearner_buffer_kwargs": {"capacity": 5}},
    {"prelearner_buffer_kwargs": {"no_such": 1}},
    {"prelearner_buffer_class": dict},
)
READ_OPTIONS: tuple[dict[str, Any], ...] = (
    {"input_read_batch_size": 2},
    {"input_read_schema": {"o": "obs"}},
    {"input_read_schema": {"obs": "new_obs", "new_obs": "obs"}},
    {"input_read_method_kwargs": {"columns": ["obs", "actions", "eps_id"]}},
    {"input_read_method_kwargs": {"batch_size": 2}},
    {"map_batches_kwargs": {"concurrency": (1, 3), "num_cpus": 2}},
    {"iter_batches_kwargs": {"prefetch_batches": "x"}},
    {"input_read_sample_batches": True},
    {"input_read_episodes": True},
    {"materialize_data": True},
)
METHODS = (
    "environment",
    "env_runners",
    "training",
    "learners",
    "offline_data",
    "evaluation",
    "rl_module",
    "debugging",
    "reporting",
    "callbacks",
    "fault_tolerance",
)
SLOW_OPTIONS = (
    "replay_buffer_config",
    "sampler",
    "num_steps_sampled_before_learning_starts",
    "torch_compile_learner",
)
"""Options that would make a variation slow."""


_SPACE_OPTIONS = ("observation_space", "action_space")


class ThreeStepEnv(gym.Env):
    """An environment with the spaces of the data and episodes of three steps."""

    def __init__(self, **kwargs: Any) -> None:
        self.observation_space, self.action_space = copy.deepcopy(SPACES)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.num_steps += 1
        return np.full(2, self.num_steps, np.float32), 1.0, self.num_steps == 3, False, {}


class DoubleRewards(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            for t in range(len(episode)):
                episode.set_rewards(new_data=2 * episode.get_rewards(t), at_indices=t)
        return batch


class UnchangedData(OfflineData):
    def sample(self, num_samples, return_iterator=False, num_shards=1):
        return super().sample(num_samples=num_samples, return_iterator=return_iterator, num_shards=num_shards)


def vary(rng: random.Random, folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return calls of a config's methods: those of a small training, with up to three random changes."""
    kind = rng.choice([*KINDS])
    prelearner = rng.choice([None, None, *HOOKS, Postprocesses, Reads240, WithoutKwargs])
    if kind in ("text", "images") and rng.random() < 0.8:
        prelearner = MapsAny
    calls: list[tuple[str, dict[str, Any]]] = [
        (
            "environment",
            {"env": ThreeStepEnv} if rng.random() < 0.6 else dict(zip(_SPACE_OPTIONS, SPACES, strict=True)),
        ),
        ("offline_data", {"input_": str(folder / kind), "dataset_num_iters_per_learner": 2, **KINDS[kind]}),
        ("training", {"train_batch_size_per_learner": 20}),
        ("rl_module", {"model_config": {"fcnet_hiddens": [4]}}),
    ]
    if prelearner is not None:
        kwargs = rng.choice([{}, {"scale": 3.0}, {"scale": 3.0}, {"no_such": 1}])
        calls.append(("offline_data", {"prelearner_class": prelearner, "prelearner_kwargs": kwargs}))
    changes: list[Callable[[], tuple[str, dict[str, Any]]]] = [
        lambda: ("learners", {"learner_connector": rng.choice(list_connectors(rng))}),
        lambda: ("offline_data", rng.choice(BUFFER_OPTIONS)),
        lambda: ("offline_data", rng.choice(READ_OPTIONS)),
        lambda: ("offline_data", {"offline_data_class": UnchangedData}),
        lambda: ("environment", {"env": rng.choice(["CartPole-v1", "Pendulum-v1", "NoSuch-v0", gym.Env, 3])}),
        lambda: ("offline_data", {"output": str(folder / f"out-{rng.random()}")}),
        lambda: ("offline_data", {"input_": rng.choice([str(folder / "no*"), [], None, 3, str(folder)])}),
        lambda: sample_option(rng),
        lambda: sample_option(rng),
        lambda: wrong_option(rng),
    ]
    calls += [change() for change in rng.sample(changes, rng.randint(0, 3))]
    if rng.random() < 0.3:
        rng.shuffle(calls)
    return calls


def list_connectors(rng: random.Random) -> list[Any]:
    choices = [
        DoubleRewards,
        DoubleRewards(),
        lambda *spaces: [DoubleRewards(*spaces)],
        library.ComputeReturnsToGo(gamma=0.9),
        library.GeneralAdvantageEstimation(gamma=0.9, lambda_=0.5),
        library.AddNextObservationsFromEpisodesToTrainBatch(),
        library.AddInfosFromEpisodesToTrainBatch(),
        library.FrameStackingLearner(num_frames=2),
        library.BatchIndividualItems(),
        "ComputeReturnsToGo",
        "NoSuchConnector",
        3,
    ]
    return [*choices, rng.sample(choices, 2)]


def sample_option(rng: random.Random) -> tuple[str, dict[str, Any]]:
    name = rng.choice([name for name in SAMPLES if name not in SLOW_OPTIONS])
    method = (
        next(method for method in METHODS if name in OPTIONS[method])
        if is_method_option(name)
        else "offline_data"
    )
    return method, {name: copy.copy(SAMPLES[name][0])}


def is_method_option(name: str) -> bool:
    return any(name in OPTIONS[method] for method in METHODS)


def wrong_option(rng: random.Random) -> tuple[str, dict[str, Any]]:
    method = rng.choice(METHODS)
    name = rng.choice([name for name in OPTIONS[method] if name not in SLOW_OPTIONS])
    return method, {name: rng.choice(WRONG_VALUES)}


def run(calls: list[tuple[str, dict[str, Any]]], algorithm: str, rng: random.Random) -> None:
    config = AlgorithmConfig(algorithm)
    for method, options in calls:
        getattr(config, method)(**options)
    with config.build_algo() as algo:
        steps: list[Callable[[], Any]] = [algo.train]
        if config.get("env") is not None:
            steps.append(algo.evaluate)
        rng.shuffle(steps)
        for step in steps:
            step()


def run_variation(seed: int, folder: Path) -> str:
    """Run a variation, and return "works" or the message of its UserError; any other error fails the test."""
    rng = random.Random(seed)
    algorithm = rng.choice(ALGORITHMS)
    calls = vary(rng, folder)
    try:
        for _ in range(2):  # as in a notebook, if a cell runs twice
            run(calls, algorithm, random.Random(seed))
    except UserError as error:
        assert str(error).strip()
        assert "Traceback" not in str(error)
        assert "\n\n" not in str(error)
        return str(error)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {algorithm} with {calls}") from error
    return "works"


@pytest.mark.soak
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("seed", range(NUM_VARIATIONS))
def test_variation_of_a_config_works_or_is_refused_with_a_message(
    seed: int,
    data: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run_variation(seed, data)
