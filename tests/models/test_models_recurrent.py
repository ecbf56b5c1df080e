"""Recurrent layers and states: sequences, single steps, slots, and states that callers keep."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from hindcast.api.model import ModelSpec
from hindcast.errors import DataError
from hindcast.models.policy import Policy
from hindcast.models.recurrent import RecurrentLayer
from hindcast.models.rl_module import RLModule, build_module
from support import WALK, make_policy

STEPS, ROWS, UNITS = 7, 5, 6
KINDS = pytest.mark.parametrize("kind", ["lstm", "gru"])


def make_recurrent_policy(kind: str, **model: Any) -> Policy:
    return make_policy(WALK, recurrent=kind, cellSize=UNITS, **model)


def make_observations(rows: int = ROWS, steps: int = STEPS, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, steps, 4)).astype(np.float32)


def compute_textbook_outputs(layer: RecurrentLayer, inputs: np.ndarray) -> np.ndarray:
    """Return outputs `[T, H]` for inputs `[T, F]`, by the equations in torch's documentation, in float64."""
    wx, wh, bx, bh = (weight.detach().double().numpy() for weight in layer._layer.all_weights[0])
    units = layer.output_size
    sigmoid = lambda values: 1 / (1 + np.exp(-values))  # noqa: E731
    h, c, outputs = np.zeros(units), np.zeros(units), []
    for x in inputs.astype(np.float64):
        from_input, from_state = (wx @ x + bx).reshape(-1, units), (wh @ h + bh).reshape(-1, units)
        if len(from_input) == 4:
            i, f, g, o = from_input + from_state
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            reset, update = sigmoid(from_input[:2] + from_state[:2])
            h = (1 - update) * np.tanh(from_input[2] + reset * from_state[2]) + update * h
        outputs.append(h)
    return np.stack(outputs)


@KINDS
class TestLayer:
    def test_layer_equals_the_textbook_equations(self, kind: str) -> None:
        torch.manual_seed(0)
        layer = RecurrentLayer(kind, 4, UNITS)
        inputs = make_observations()
        outputs, _ = layer(torch.from_numpy(inputs), {})
        expected = np.stack([compute_textbook_outputs(layer, sequence) for sequence in inputs])
        np.testing.assert_allclose(outputs.detach().numpy(), expected, atol=1e-6)

    def test_initial_gates_are_orthogonal_and_keep_the_state(self, kind: str) -> None:
        torch.manual_seed(0)
        weights = RecurrentLayer(kind, UNITS, UNITS)._layer.all_weights[0]
        wx, wh, bx, bh = (weight.detach() for weight in weights)
        for gate in (*wx.split(UNITS), *wh.split(UNITS)):
            torch.testing.assert_close(gate @ gate.T, torch.eye(UNITS), atol=1e-5, rtol=0)
        assert bx.split(UNITS)[1].eq(1).all()
        assert bx.sum() == UNITS
        assert not bh.any()

    def test_state_of_another_layer_is_refused(self, kind: str) -> None:
        layer, features = RecurrentLayer(kind, 4, UNITS), torch.zeros(ROWS, 4)
        with pytest.raises(DataError, match=r"'h' has shape \[5, 8\], but the policy needs shape \[5, 6\]"):
            layer(features, {"h": torch.zeros(ROWS, 8), "c": torch.zeros(ROWS, 8)})
        layer(features, {"h": torch.zeros(ROWS, UNITS).double(), "c": torch.zeros(ROWS, UNITS).double()})
        with pytest.raises(DataError, match="state 'h' is missing"):
            layer(features, {"x": torch.zeros(ROWS, UNITS)})


def run_stepwise(module: RLModule, obs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return `[B, T, P]` outputs of a module that gets `[B, T, …]` one step at a time, and the state after the last.

    The state is leaf (`state_in/…`) -> `[B, H]`, as for a next step.
    """
    state: dict[str, Tensor] = {}
    outputs_by_step = []
    for t in range(obs.shape[1]):
        outputs = module.forward_inference({"obs": obs[:, t], **state})
        state = {f"state_in/{name}": outputs[f"state_out/{name}"] for name in module.get_initial_state()}
        outputs_by_step.append(outputs["action_dist_inputs"])
    return torch.stack(outputs_by_step, 1), state


@KINDS
class TestModule:
    def test_sequence_equals_its_steps(self, kind: str) -> None:
        module, obs = make_recurrent_policy(kind).module, torch.from_numpy(make_observations())
        expected, state = run_stepwise(module, obs)
        outputs = module.forward_train({"obs": obs})
        assert outputs["vf_preds"].shape == (ROWS, STEPS)
        torch.testing.assert_close(outputs["action_dist_inputs"], expected, atol=1e-5, rtol=1e-5)
        for name, expected_state in state.items():
            actual_state = outputs[name.replace("state_in", "state_out")]
            torch.testing.assert_close(actual_state, expected_state, atol=1e-5, rtol=1e-5)

    def test_sequence_continues_from_the_given_state(self, kind: str) -> None:
        module, obs = make_recurrent_policy(kind).module, torch.from_numpy(make_observations())
        expected = module.forward_train({"obs": obs})["action_dist_inputs"]
        _, state = run_stepwise(module, obs[:, :3])
        remaining_outputs = module.forward_train({"obs": obs[:, 3:], **state})["action_dist_inputs"]
        torch.testing.assert_close(remaining_outputs, expected[:, 3:], atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("is_shared", [True, False])
    def test_values_are_computed_over_sequences(self, kind: str, is_shared: bool) -> None:
        module = make_recurrent_policy(kind, vfShareLayers=is_shared).module
        batch = {"obs": torch.from_numpy(make_observations())}
        values = module.compute_values(batch)
        torch.testing.assert_close(values, module.forward_train(batch)["vf_preds"])
        shorter_values = module.compute_values({"obs": batch["obs"][:, :3]})
        torch.testing.assert_close(shorter_values, values[:, :3], atol=1e-5, rtol=1e-5)


@KINDS
class TestPolicy:
    def test_each_slot_has_its_own_state(self, kind: str) -> None:
        """Slots begin their episodes at different times, as in a runner."""
        policy, obs = make_recurrent_policy(kind), make_observations()
        is_first = np.zeros((ROWS, STEPS), dtype=np.bool_)
        is_first[:, 0] = is_first[1, 2] = is_first[4, 5] = True
        steps = [policy.act(obs[:, t], is_first=is_first[:, t]).dist_inputs for t in range(STEPS)]
        dist_inputs = np.stack(steps, 1)
        for slot in range(ROWS):
            for start, end in pairwise([*np.flatnonzero(is_first[slot]), STEPS]):
                episode_obs = torch.from_numpy(obs[slot : slot + 1, start:end])
                expected, _ = run_stepwise(policy.module, episode_obs)
                np.testing.assert_allclose(dist_inputs[slot, start:end], expected[0].detach(), atol=1e-5)

    def test_other_number_of_slots_is_refused_unless_all_begin_an_episode(self, kind: str) -> None:
        policy, obs = make_recurrent_policy(kind), make_observations()[:, 0]
        policy.act(obs)
        with pytest.raises(ValueError, match="have 3 slots, but the recurrent state has 5"):
            policy.act(obs[:3])
        actual = policy.act(obs[:3], is_first=np.ones(3, dtype=np.bool_)).dist_inputs
        np.testing.assert_array_equal(actual, make_recurrent_policy(kind).act(obs[:3]).dist_inputs)

    def test_call_act_and_compute_actions_agree(self, kind: str) -> None:
        """`act` keeps the state of each slot, a call that of one episode; for `compute_actions` the caller keeps it."""
        policy, obs = make_recurrent_policy(kind), make_observations(rows=1)
        for episode in range(2):
            policy.reset()
            state = None
            is_first = np.ones(1, dtype=np.bool_)
            for t in range(STEPS):
                action = policy.act(obs[:, t], is_first=is_first if t == 0 else None).env_actions[0]
                actions, state = policy.compute_actions(obs[:, t], state)
                assert action == actions[0] == policy(obs[0, t]), f"episode {episode}"
        assert state is not None
        assert state.keys() == policy.module.get_initial_state().keys()
        assert {rows.shape for rows in state.values()} == {(1, UNITS)}

    def test_loaded_recurrent_policy_acts_the_same(self, kind: str) -> None:
        policy, obs = make_recurrent_policy(kind), make_observations()
        restored_policy = Policy.from_files(policy.to_files())
        assert restored_policy.digest == policy.digest
        for t in range(STEPS):
            expected, actual = policy.act(obs[:, t]), restored_policy.act(obs[:, t])
            np.testing.assert_array_equal(expected.dist_inputs, actual.dist_inputs)
        assert json.loads(policy.to_files()["module.json"])["model"]["recurrent"] == kind

    def test_copy_in_mid_episode_continues_alike(self, kind: str) -> None:
        policy, obs = make_recurrent_policy(kind), make_observations()
        policy.act(obs[:, 0])
        copied_policy = copy.deepcopy(policy)
        expected, actual = (p.act(obs[:, 1]).dist_inputs for p in (policy, copied_policy))
        np.testing.assert_array_equal(actual, expected)


def test_compute_actions_with_frame_stack_is_refused() -> None:
    with pytest.raises(DataError, match="does not support policies that stack frames"):
        make_policy(WALK, frameStack=2).compute_actions(make_observations()[:, 0])


def test_policy_without_recurrent_layer_has_no_state() -> None:
    policy = make_policy(WALK)
    assert not policy.module.is_stateful()
    assert not policy.act(make_observations()[:, 0]).state_out
    actions, state = policy.compute_actions(make_observations()[:, 0])
    assert len(actions) == ROWS
    assert state == {}


def test_saved_policy_omits_later_options_at_their_defaults() -> None:
    model = json.loads(make_policy(WALK).to_files()["module.json"])["model"]
    assert sorted(model) == [
        "convActivation",
        "convFilters",
        "distribution",
        "fcnetActivation",
        "fcnetHiddens",
        "frameStack",
        "freeLogStd",
        "headFcnetHiddens",
        "logStdClip",
        "observationFilter",
        "vfShareLayers",
    ]


class StepCounter(RLModule):
    """A custom module whose action is the number of earlier steps of the episode, modulo 3."""

    def setup(self) -> None:
        self.scale = torch.nn.Parameter(torch.ones(()))

    def get_initial_state(self) -> dict[str, Tensor]:
        return {"steps": torch.full((), 2.0)}

    def _forward(self, batch: Any) -> dict[str, Tensor]:
        steps = batch["state_in/steps"] + 1
        inputs = torch.nn.functional.one_hot(steps.long() % 3, 3) * self.scale
        return {"action_dist_inputs": inputs, "state_out/steps": steps}


def test_custom_module_may_have_any_state() -> None:
    space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    module = build_module(space, gym.spaces.Discrete(3), ModelSpec(), module_class=StepCounter)
    policy = Policy(module, make_policy(WALK).preprocessing, space, gym.spaces.Discrete(3))
    obs = make_observations()[:, 0]
    first_actions = [policy.act(obs).env_actions.tolist() for _ in range(3)]
    assert first_actions == [[0] * ROWS, [1] * ROWS, [2] * ROWS]
    is_first = np.arange(ROWS) == 3
    policy.act(obs)
    assert policy.act(obs, is_first=is_first).env_actions.tolist() == [1, 1, 1, 0, 1]
