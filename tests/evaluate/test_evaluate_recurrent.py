"""Offline evaluation of recurrent policies, which carry their state through each recorded episode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from episode_kit import build_block, read_block
from hindcast.algorithms import build
from hindcast.api import EnvironmentSpec
from hindcast.api.evaluation import DOUBLY_ROBUST_ESTIMATES, RATIO_ESTIMATES
from hindcast.api.model import ModelSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.evaluate.fitted_q import FittedQOptions
from hindcast.evaluate.offline import OfflineOptions, evaluate_offline
from hindcast.formats.spec import DataSpec
from hindcast.learn.algorithm import ModelInputs
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule
from hindcast.storage.location import resolve
from support import WALK, make_policy, record, recording

SPACES = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
GAMMA, BEHAVIOUR_PROB, TARGET_PROB = 0.9, 0.6, 0.8
"""Discount, and the probabilities with which the behaviour and the target name the cue."""

MEAN_RETURN = np.mean([sum(GAMMA**t for t in range(steps)) for steps in range(1, 6)])
"""Mean return of a policy that always names the cue."""


class CueModule(RLModule):
    """Names the cue, which is the first observation (-1 or 1), with `TARGET_PROB`; later observations are 0."""

    def setup(self) -> None:
        self.half_logit = nn.Parameter(torch.tensor(math.log(TARGET_PROB / (1 - TARGET_PROB)) / 2))

    def get_initial_state(self) -> dict[str, Tensor]:
        return {"cue": torch.zeros(1)}

    def _forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        cue = batch["state_in/cue"] + batch["obs"]
        return {"action_dist_inputs": self.half_logit * torch.cat([-cue, cue], -1), "state_out/cue": cue}


def make_cue_policy() -> Policy:
    """Return a policy with a `CueModule`."""
    model = ModelSpec()
    preprocessing = Preprocessing.from_specs(*SPACES, model, EnvironmentSpec(id="Cue-v0"))
    return Policy(CueModule(*SPACES, model).eval(), preprocessing, *SPACES)


def record_cues(folder: Path, num_episodes: int, *, logp: bool = True) -> Dataset:
    """Write episodes of 1 to 5 steps; each step that names the cue earns 1."""
    rng = np.random.default_rng(0)
    length = rng.integers(1, 6, num_episodes)
    cue, t = rng.integers(0, 2, num_episodes), np.concatenate([np.arange(steps + 1) for steps in length])
    obs = np.where(t == 0, 2.0 * np.repeat(cue, length + 1) - 1, 0.0).astype(np.float32)[:, None]
    is_named = rng.random(length.sum()) < BEHAVIOUR_PROB
    actions = np.where(is_named, np.repeat(cue, length), 1 - np.repeat(cue, length))
    columns = {"obs": obs, "actions": actions, "rewards": is_named.astype(np.float64)}
    if logp:
        probs = np.where(is_named, BEHAVIOUR_PROB, 1 - BEHAVIOUR_PROB)
        columns["action_logp"] = np.log(probs).astype(np.float32)
    flags = {"terminated": np.ones(num_episodes, bool), "truncated": np.zeros(num_episodes, bool)}
    block = build_block(columns, length, **flags)
    with BlockWriter(resolve(folder), DataSpec.from_block(block, *SPACES, "Cue-v0"), "s") as writer:
        writer.write(block)
    return open_dataset(folder)


def make_options(explore: bool = True, fit: FittedQOptions | None = None) -> OfflineOptions:
    return OfflineOptions(gamma=GAMMA, explore=explore, resamples=200, fit=fit)


def test_estimates_are_near_truth_and_verdict_is_right(tmp_path: Path) -> None:
    report = evaluate_offline(make_cue_policy(), record_cues(tmp_path, 1000), "cues", make_options())
    true_return = TARGET_PROB * MEAN_RETURN
    assert set(report.estimates) == set(RATIO_ESTIMATES)
    for name in RATIO_ESTIMATES:
        low, high = report.estimates[name].interval or (math.nan, math.nan)
        assert low <= report.estimates[name].value <= high
        assert abs(report.estimates[name].value - true_return) < high - low < 0.5, name
    assert report.estimates["pdwis"].value > report.behaviour.value
    assert report.verdict.answer == "better"
    agreement = report.signals["action_agreement"]
    assert agreement == pytest.approx(BEHAVIOUR_PROB, abs=0.03)  # the likeliest action names the cue
    loss = -agreement * math.log(TARGET_PROB) - (1 - agreement) * math.log(1 - TARGET_PROB)
    assert report.signals["imitation_loss"] == pytest.approx(loss, rel=1e-4)


def test_ratios_use_the_recurrent_state(tmp_path: Path) -> None:
    """Compare with estimates from the known ratios."""
    data = record_cues(tmp_path, 200)
    block = read_block(data)
    is_named = block.columns["rewards"].astype(bool)
    ratios = np.where(is_named, TARGET_PROB / BEHAVIOUR_PROB, (1 - TARGET_PROB) / (1 - BEHAVIOUR_PROB))
    first_step = np.cumsum(block.length) - block.length
    weights = np.multiply.reduceat(ratios, first_step)
    t = np.arange(block.num_steps) - np.repeat(first_step, block.length)
    returns = np.add.reduceat(GAMMA**t * is_named, first_step)
    report = evaluate_offline(make_cue_policy(), data, "cues", make_options())
    assert report.estimates["is"].value == pytest.approx(np.mean(weights * returns), rel=1e-5)
    assert report.estimates["wis"].value == pytest.approx(np.average(returns, weights=weights), rel=1e-5)


def test_estimates_by_model_are_refused(tmp_path: Path) -> None:
    options = make_options(fit=FittedQOptions(updates=5))
    report = evaluate_offline(make_cue_policy(), record_cues(tmp_path, 50), "cues", options)
    reason = "the policy has a recurrent state, but a model's values depend on observations alone"
    assert report.not_estimated == dict.fromkeys(("dm", *DOUBLY_ROBUST_ESTIMATES), reason)
    assert report.verdict.estimate == "pdwis"


def test_behaviour_of_recurrent_policy_is_not_cloned(tmp_path: Path) -> None:
    data = record_cues(tmp_path, 50, logp=False)
    report = evaluate_offline(make_cue_policy(), data, "cues", make_options())
    assert report.estimates == {}
    assert "the recorded policy is not cloned, because it may be recurrent" in report.not_estimated["wis"]
    assert report.verdict.sentence.startswith("no verdict: the data have no action_logp")
    assert report.signals["action_agreement"] > 0.5


def test_greedy_recurrent_policy_counts_episodes_of_its_own_actions(tmp_path: Path) -> None:
    data = record_cues(tmp_path, 300)
    report = evaluate_offline(make_cue_policy(), data, "cues", make_options(explore=False))
    # Only episodes whose every action names the cue count. Long ones are rarer and have larger weights: the mean over
    # all lengths is the same.
    assert report.estimates["wis"].value == pytest.approx(MEAN_RETURN, abs=0.25)


@pytest.mark.parametrize("network", ["lstm", "DecisionTransformer"])
def test_ratios_are_one_when_policy_recorded_the_data(tmp_path: Path, network: str) -> None:
    """Unlike an LSTM, a decision transformer also reads rewards and its own actions."""
    policy = make_policy(WALK, recurrent="LSTM", cellSize=8)
    if network != "lstm":
        config = {"contextLength": 4, "embedSize": 8, "targetReturn": 9.0}
        preprocessing = policy.preprocessing
        inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, ModelSpec())
        module = build(network, config).networks(inputs)["policy"].eval()
        policy = Policy(module, preprocessing, policy.observation_space, policy.action_space)
    policy.save(tmp_path / "module")
    checkpoint = {"checkpoint": {"path": str(tmp_path / "module")}}
    record(recording(tmp_path / "data", policy=checkpoint, duration={"episodes": 20}))
    report = evaluate_offline(policy, open_dataset(tmp_path / "data"), "walks", make_options())
    assert report.effective_episodes == pytest.approx(20, rel=1e-4)
    assert report.estimates["wis"].value == pytest.approx(report.behaviour.value, rel=1e-4)
