"""Trainings with random combinations of the options of an algorithm, and the data that they learn from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from episode_kit import build_block, record
from hindcast.algorithms import REGISTRY, build
from hindcast.errors import UserError
from hindcast.formats.spec import DataSpec
from support import training

SCHEDULE = [[0, 1e-3], [200, 1e-4, "Cosine"], [400, 3e-4]]
OPTIONS: tuple[dict[str, Any], ...] = (
    {"nStep": 3},
    {"numCritics": 3},
    {"numCritics": 4, "qSubset": 2},
    {"qAggregation": "Mean"},
    {"diversity": 0.5},
    {"calibrated": True, "nextStateGap": False},
    {"lagrangian": True},
    {"nextStateGap": True, "calibrated": False},
    {"actionChunk": 2},
    {"twinQ": False},
    {"numQuantiles": 3},
    {"prioritizedReplay": True, "prioritizedReplayBeta": [[0, 0.4], [400, 1.0]]},
    {"weightDecay": 1e-2},
    {"adamEpsilon": 1e-4},
    {"gradClip": 0.5},
    {"lr": SCHEDULE},
    {"actorLr": SCHEDULE, "criticLr": SCHEDULE},
)
"""Options of algorithms by YAML name; an algorithm has some of these."""
REWARDS: tuple[dict[str, Any], ...] = (
    {"normalize": "Std", "shift": -0.5, "clip": 1.0},
    {"normalize": "ReturnRange", "scale": 10.0},
)
MEMORY = {"recurrent": "LSTM", "cellSize": 8, "maxSeqLen": 5}
FIXED_OPTIONS = {
    "DecisionTransformer": {
        "contextLength": 4,
        "embedSize": 8,
        "numHeads": 2,
        "numLayers": 1,
        "dropout": 0.0,
    },
    "CQL": {"numActions": 2},
    "FQL": {"flowSteps": 2},
    "ReBRAC": {"normalizeQ": False},
}
"""Options that keep a training small, or its losses independent of the number of learners."""
ACTIONS: dict[str, gym.Space] = {
    "continuous": gym.spaces.Box(-1, 1, (2,)),
    "discrete": gym.spaces.Discrete(4, start=1),
    "masked": gym.spaces.MultiDiscrete([2, 3]),
}
"""Name of data -> space of actions; there are such data with and without times."""


def write_data(folder: Path) -> dict[str, Path]:
    """Write 24 episodes for each space of actions, with and without times; return name -> folder."""
    return {
        name: write_episodes(folder / name, space, has_times="timed" in name, is_masked="masked" in name)
        for space_name, space in ACTIONS.items()
        for name in (space_name, f"timed {space_name}")
    }


def write_episodes(folder: Path, actions: gym.Space, *, has_times: bool, is_masked: bool) -> Path:
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 12, 24)
    num_steps = int(lengths.sum())
    num_observations = num_steps + len(lengths)
    actions.seed(0)
    state_space = gym.spaces.Box(-1, 1, (3,))
    states = rng.uniform(-1, 1, (num_observations, 3)).astype(np.float32)
    columns = {
        "actions": np.stack([actions.sample() for _ in range(num_steps)]),
        "rewards": rng.uniform(-1, 1, num_steps).astype(np.float32),
    }
    observation_space: gym.Space = state_space
    if is_masked:
        mask = rng.integers(0, 2, (num_observations, 5)).astype(np.int8)
        rows = np.arange(num_steps) + np.arange(len(lengths)).repeat(lengths)
        first, second = columns["actions"].T
        mask[rows, first] = mask[rows, 2 + second] = 1
        columns |= {"obs/action_mask": mask, "obs/observations": states}
        observation_space = gym.spaces.Dict(
            {"action_mask": gym.spaces.MultiBinary(5), "observations": state_space}
        )
    else:
        columns["obs"] = states
    if has_times:
        columns["delta_t"] = rng.exponential(size=num_steps)
    block = build_block(columns, lengths)
    record(folder, block, spec=DataSpec.from_block(block, observation_space, actions, "Test-v0"))
    return folder


def draw_trainings(seed: int, folder: Path, data: dict[str, Path]) -> Iterator[tuple[str, Any, Path]]:
    """Yield without end the description of a random training, its resource and its data.

    Combinations with options that exclude each other are left out.
    """
    rng = np.random.default_rng(seed)
    names = [name for name, algorithm in REGISTRY.items() if "OfflineTraining" in algorithm.kinds]
    names.remove("TD3BC")  # each learner divides by the mean |Q| of its shard, see docs/learners.md
    for index in count():
        name = names[index % len(names)]
        algorithm = REGISTRY[name]
        fields = {field.alias or key for key, field in algorithm.Options.model_fields.items()}
        config = dict(FIXED_OPTIONS.get(name, {}))
        for options in rng.permutation(np.array(OPTIONS, dtype=object)):
            if options.keys() <= fields and not options.keys() & config.keys() and rng.random() < 0.4:
                config |= options
        spaces = [
            space
            for space in ACTIONS
            if algorithm.actions == "any" or (space == "continuous") == (algorithm.actions == "continuous")
        ]
        data_name = ("timed " if rng.random() < 0.4 else "") + str(rng.choice(spaces))
        spec = {
            "algorithm": name,
            "config": {"trainBatchSizePerLearner": 24, **config},
            "model": {
                "fcnetHiddens": [16],
                **(MEMORY if algorithm.can_train_recurrent and rng.random() < 0.3 else {}),
            },
            **({"rewards": REWARDS[rng.integers(len(REWARDS))]} if rng.random() < 0.4 else {}),
            "pipeline": {"windowSteps": 60},
        }
        try:
            build(name, spec["config"])
            resource = training(folder / str(index), data[data_name], **spec)
        except UserError:  # options that exclude each other
            continue
        yield f"{seed}.{index}: {spec} on {data_name}", resource, data[data_name]
