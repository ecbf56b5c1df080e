"""A policy with a memory is judged by what it remembers of each recorded episode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hindcast.algorithms import build
from hindcast.api import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.evaluate.estimators import DOUBLY_ROBUST_ESTIMATES, RATIO_ESTIMATES
from hindcast.evaluate.fitted_q import Fit
from hindcast.evaluate.offline import OfflineOptions, evaluate_offline
from hindcast.formats.spec import DataSpec
from hindcast.learn.algorithm import ModelInputs
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule
from hindcast.storage.location import resolve
from support import WALK, make_policy, record, recording

SPACES = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
GAMMA, BEHAVED, WANTED = 0.9, 0.6, 0.8
"""Discount, and how often behaviour and target name the cue."""


class Remembering(RLModule):
    """Names the cue of the first observation, 0 or 1 as -1 or 1, with the probability `WANTED`; later ones are 0."""

    def setup(self) -> None:
        self.sure = nn.Parameter(torch.tensor(math.log(WANTED / (1 - WANTED)) / 2))

    def get_initial_state(self) -> dict[str, Tensor]:
        return {"cue": torch.zeros(1)}

    def _forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        cue = batch["state_in/cue"] + batch["obs"]
        return {"action_dist_inputs": self.sure * torch.cat([-cue, cue], -1), "state_out/cue": cue}


def remembering() -> Policy:
    model = ModelSpec()
    preprocessing = Preprocessing.from_specs(*SPACES, model, EnvironmentSpec(id="Cue-v0"))
    return Policy(Remembering(*SPACES, model).eval(), preprocessing, *SPACES)


def recorded(folder: Path, episodes: int, *, logp: bool = True) -> Dataset:
    """Episodes of 1 to 5 steps; each step that names the cue earns 1."""
    rng = np.random.default_rng(0)
    length = rng.integers(1, 6, episodes)
    cue, t = rng.integers(0, 2, episodes), np.concatenate([np.arange(steps + 1) for steps in length])
    obs = np.where(t == 0, 2.0 * np.repeat(cue, length + 1) - 1, 0.0).astype(np.float32)[:, None]
    named = rng.random(length.sum()) < BEHAVED
    columns = {
        "obs": obs,
        "actions": np.where(named, np.repeat(cue, length), 1 - np.repeat(cue, length)),
        "rewards": named.astype(np.float64),
    }
    if logp:
        columns["action_logp"] = np.log(np.where(named, BEHAVED, 1 - BEHAVED)).astype(np.float32)
    block = Block(
        columns=columns,
        length=length,
        eps_id=np.array([f"e{index}" for index in range(episodes)], dtype=object),
        t_started=np.zeros(episodes, dtype=np.int64),
        terminated=np.ones(episodes, dtype=bool),
        truncated=np.zeros(episodes, dtype=bool),
    )
    with BlockWriter(resolve(folder), DataSpec.from_block(block, *SPACES, "Cue-v0"), "s") as writer:
        writer.write(block)
    return open_dataset(folder)


def options(explore: bool = True, fit: Fit | None = None) -> OfflineOptions:
    return OfflineOptions(gamma=GAMMA, explore=explore, resamples=200, fit=fit)


def test_estimates_are_near_the_truth_and_the_verdict_is_right(tmp_path: Path) -> None:
    report = evaluate_offline(remembering(), recorded(tmp_path, 1000), "cues", options())
    worth = np.mean([WANTED * sum(GAMMA**t for t in range(steps)) for steps in range(1, 6)])
    assert set(report.estimates) == set(RATIO_ESTIMATES)
    for name in RATIO_ESTIMATES:
        low, high = report.estimates[name].interval or (math.nan, math.nan)
        assert low <= report.estimates[name].value <= high
        assert abs(report.estimates[name].value - worth) < high - low < 0.5, name
    assert report.estimates["pdwis"].value > report.behaviour.value
    assert report.verdict.answer == "better"
    named = report.signals["action_agreement"]
    assert named == pytest.approx(BEHAVED, abs=0.03)  # its likeliest action names the cue
    of_named, of_others = -math.log(WANTED), -math.log(1 - WANTED)
    assert report.signals["imitation_loss"] == pytest.approx(
        named * of_named + (1 - named) * of_others, rel=1e-4
    )


def test_ratios_are_those_of_a_policy_that_remembers(tmp_path: Path) -> None:
    """Each step's is known, whatever the order of the episodes and their lengths."""
    data = recorded(tmp_path, 200)
    block = Block.concat([data.read(unit) for unit in data.units])
    named = block.columns["rewards"].astype(bool)
    ratios = np.where(named, WANTED / BEHAVED, (1 - WANTED) / (1 - BEHAVED))
    first = np.cumsum(block.length) - block.length
    weights = np.multiply.reduceat(ratios, first)
    returns = np.array(
        [
            sum(GAMMA**t * named[start + t] for t in range(steps))
            for start, steps in zip(first, block.length, strict=True)
        ]
    )
    report = evaluate_offline(remembering(), data, "cues", options())
    assert report.estimates["is"].value == pytest.approx(np.mean(weights * returns), rel=1e-5)
    assert report.estimates["wis"].value == pytest.approx(np.average(returns, weights=weights), rel=1e-5)


def test_what_takes_a_model_is_refused_by_name(tmp_path: Path) -> None:
    report = evaluate_offline(remembering(), recorded(tmp_path, 50), "cues", options(fit=Fit(updates=5)))
    why = "the policy has a recurrent state, and a model's values are of observations alone"
    assert report.refused == dict.fromkeys(("dm", *DOUBLY_ROBUST_ESTIMATES), why)
    assert report.verdict.by == "pdwis"


def test_a_behaviour_that_may_remember_is_not_cloned(tmp_path: Path) -> None:
    report = evaluate_offline(remembering(), recorded(tmp_path, 50, logp=False), "cues", options())
    assert report.estimates == {}
    assert "the behaviour is not cloned, since it may have a state too" in report.refused["wis"]
    assert report.verdict.sentence.startswith("nothing can be said: the data have no action_logp")
    assert report.signals["action_agreement"] > 0.5


def test_acting_greedily_the_episodes_count_in_which_it_would_have_done_the_same(tmp_path: Path) -> None:
    data = recorded(tmp_path, 300)
    report = evaluate_offline(remembering(), data, "cues", options(explore=False))
    assert report.estimates["wis"].value == pytest.approx(
        np.average([sum(GAMMA**t for t in range(steps)) for steps in range(1, 6)]), abs=0.25
    )


@pytest.mark.parametrize("kind", ["lstm", "DecisionTransformer"])
def test_ratios_are_one_of_what_the_policy_itself_recorded(tmp_path: Path, kind: str) -> None:
    """A decision transformer also sees rewards and its own actions."""
    policy = make_policy(WALK, recurrent="LSTM", cellSize=8)
    if kind != "lstm":
        config = {"contextLength": 4, "embedSize": 8, "targetReturn": 9.0}
        seen = policy.preprocessing
        inputs = ModelInputs(seen.observation_space, seen.action_space, ModelSpec())
        module = build(kind, config).networks(inputs)["policy"].eval()
        policy = Policy(module, seen, policy.observation_space, policy.action_space)
    policy.save(tmp_path / "module")
    checkpoint = {"checkpoint": {"path": str(tmp_path / "module")}}
    record(recording(tmp_path / "data", policy=checkpoint, duration={"episodes": 20}))
    report = evaluate_offline(policy, open_dataset(tmp_path / "data"), "walks", options())
    assert report.effective_episodes == pytest.approx(20, rel=1e-4)
    assert report.estimates["wis"].value == pytest.approx(report.behaviour.value, rel=1e-4)
