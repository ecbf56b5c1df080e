from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.errors import UserCodeError
from hindcast.models.rl_module import PolicyModule, RLModule, build_module
from module_toys import LinearModule

OBS = Box(-1.0, 1.0, (4,))
DISCRETE = Discrete(3)
BATCH = {"obs": torch.linspace(-1, 1, 20).reshape(5, 4)}


def _build_module(action_space: Space = DISCRETE, value: bool = True, **options: object) -> RLModule:
    torch.manual_seed(0)
    return build_module(OBS, action_space, ModelSpec(fcnet_hiddens=[16, 16], **options), value)


def test_outputs_have_rllibs_names_and_shapes() -> None:
    module = _build_module()
    shapes = {name: tuple(output.shape) for name, output in module.forward_train(BATCH).items()}
    assert shapes == {"action_dist_inputs": (5, 3), "vf_preds": (5,)}
    assert set(module.forward_inference(BATCH)) == {"action_dist_inputs"}
    assert set(module.forward_exploration(BATCH)) == {"action_dist_inputs"}


@pytest.mark.parametrize("is_shared", [False, True])
def test_compute_values_equals_forward_train(is_shared: bool) -> None:
    module = _build_module(vf_share_layers=is_shared)
    torch.testing.assert_close(module.compute_values(BATCH), module.forward_train(BATCH)["vf_preds"])


class ZeroLogits(PolicyModule):
    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch, **kwargs)
        return {**outputs, "action_dist_inputs": 0 * outputs["action_dist_inputs"]}


class HalfValues(PolicyModule):
    def compute_values(self, batch):
        return super().compute_values(batch) / 2


class NoOutputs(PolicyModule):
    def _forward(self, batch):
        return None


def _build_subclass(module_class: type[RLModule], value: bool = True, **options: Any) -> RLModule:
    torch.manual_seed(0)
    return build_module(OBS, DISCRETE, ModelSpec(**options), value, module_class)


@pytest.mark.parametrize(("value", "is_shared"), [(False, False), (True, False), (True, True)])
def test_override_of_forward_changes_acting_and_training(value: bool, is_shared: bool) -> None:
    module = _build_subclass(ZeroLogits, value, vf_share_layers=is_shared)
    for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
        assert not forward(BATCH)["action_dist_inputs"].any()
    if value:
        torch.testing.assert_close(module.forward_train(BATCH)["vf_preds"], module.compute_values(BATCH))


@pytest.mark.parametrize("is_shared", [False, True])
def test_override_of_compute_values_changes_training(is_shared: bool) -> None:
    modules = [_build_subclass(cls, vf_share_layers=is_shared) for cls in (PolicyModule, HalfValues)]
    values, half_values = (module.forward_train(BATCH)["vf_preds"] for module in modules)
    torch.testing.assert_close(half_values, values / 2)


@pytest.mark.parametrize("value", [False, True])
def test_override_of_forward_without_outputs_is_named(value: bool) -> None:
    with pytest.raises(
        UserCodeError, match=r"^NoOutputs\._forward \(.*test_models_rl_module\.py:\d+\) returns"
    ):
        _build_subclass(NoOutputs, value).forward_train(BATCH)


@pytest.mark.parametrize("is_shared", [False, True])
def test_value_loss_reaches_the_policy_encoder_only_if_shared(is_shared: bool) -> None:
    module = _build_module(vf_share_layers=is_shared)
    module.compute_values(BATCH).sum().backward()
    gradients = [parameter.grad for parameter in module.encoder.parameters()]
    assert all(gradient is not None for gradient in gradients) == is_shared


def test_module_without_value_head_has_no_values() -> None:
    module = _build_module(value=False)
    assert set(module.forward_train(BATCH)) == {"action_dist_inputs"}
    with pytest.raises(NotImplementedError, match="no value head"):
        module.compute_values(BATCH)


def test_weights_follow_from_the_global_seed() -> None:
    module, repeated_module = _build_module(), _build_module()
    assert all(map(torch.equal, module.parameters(), repeated_module.parameters()))
    torch.manual_seed(1)
    other_seed_module = build_module(OBS, Discrete(3), ModelSpec(fcnet_hiddens=[16, 16]), True)
    assert not torch.equal(next(module.parameters()), next(other_seed_module.parameters()))


def test_initial_policy_is_nearly_uniform() -> None:
    module = _build_module()
    entropy = module.distribution(module.forward_train(BATCH)["action_dist_inputs"]).entropy()
    torch.testing.assert_close(entropy, torch.full((5,), np.log(3.0), dtype=torch.float32), atol=1e-3, rtol=0)


def test_free_log_std_is_trained_and_independent_of_the_observation() -> None:
    space = Tuple((Box(-1.0, 1.0, (2,)), Discrete(2)))
    module = _build_module(space, value=False, free_log_std=True)
    inputs = module.forward_train(BATCH)["action_dist_inputs"]
    assert inputs.shape == (5, 6)
    assert (inputs[:, 2:4] == 0).all()
    assert isinstance(module, PolicyModule)
    assert module.log_std is not None
    actions = {"actions/0": torch.ones(5, 2), "actions/1": torch.zeros(5)}
    module.distribution(inputs).logp(actions).sum().backward()
    assert module.log_std.log_std.grad is not None
    assert (module.log_std.log_std.grad != 0).all()


def test_set_state_restores_get_state() -> None:
    source, target = _build_module(), _build_module()
    with torch.no_grad():
        next(target.parameters()).add_(1.0)
    target.set_state(source.get_state())
    torch.testing.assert_close(target.forward_train(BATCH), source.forward_train(BATCH), rtol=0, atol=0)


def test_get_state_is_a_copy() -> None:
    module = _build_module()
    state = module.get_state()
    tensors_before = {name: tensor.clone() for name, tensor in state.items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(torch.equal(state[name], tensors_before[name]) for name in tensors_before)


def test_head_layers_stand_between_encoder_and_output() -> None:
    for head_hiddens, num_layers in (([], 3), ([8], 4)):
        module = _build_module(value=False, head_fcnet_hiddens=head_hiddens)
        assert sum(isinstance(layer, nn.Linear) for layer in module.modules()) == num_layers


def test_composite_observations_and_images_are_accepted() -> None:
    space = Dict(camera=Box(0, 255, (36, 36, 1), dtype=np.uint8), speed=Box(-1.0, 1.0, (2,)))
    module = build_module(space, Discrete(2), ModelSpec(), True)
    batch = {"obs/camera": torch.zeros(2, 36, 36, 1, dtype=torch.uint8), "obs/speed": torch.zeros(2, 2)}
    assert module.forward_train(batch)["action_dist_inputs"].shape == (2, 2)


class ExploresUniformly(LinearModule):
    def _forward_exploration(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"action_dist_inputs": self.pi(batch["obs"]) * 0.0}


def test_custom_module_may_override_single_passes() -> None:
    module = build_module(OBS, Discrete(3), ModelSpec(), module_class=ExploresUniformly)
    outputs = module.forward_train(BATCH)["action_dist_inputs"]
    assert torch.equal(outputs, module.forward_inference(BATCH)["action_dist_inputs"])
    assert (module.forward_exploration(BATCH)["action_dist_inputs"] == 0).all()
