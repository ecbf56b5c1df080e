"""Options of the default networks."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hindcast.api.model import ModelSpec
from hindcast.errors import SpecError
from hindcast.learn.algorithm import ModelInputs
from hindcast.learn.target_networks import frozen_copy
from hindcast.models.encoders import Encoder, sees_images
from hindcast.models.flow_policy import NoiseMap
from hindcast.models.networks import MemberLinear
from hindcast.models.return_policy import ReturnPolicy
from hindcast.models.rl_module import PolicyModule, build_module

VECTOR = gym.spaces.Box(-1, 1, (6,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (9, 7, 2), np.uint8)
ACTIONS = gym.spaces.Discrete(3)
BATCH = {"obs": torch.linspace(-1, 1, 60).reshape(10, 6)}
DEFAULT_OPTIONS = {"fcnet_hiddens": [16, 12], "head_fcnet_hiddens": [8], "recurrent": "lstm", "cell_size": 5}


def build_policy_module(space: gym.Space = VECTOR, **options: Any) -> PolicyModule:
    torch.manual_seed(0)
    model = ModelSpec.model_validate({**DEFAULT_OPTIONS, **options})
    module = build_module(space, ACTIONS, model, value=True)
    assert isinstance(module, PolicyModule)
    return module


def build_networks(**options: Any) -> dict[str, nn.Module]:
    inputs = ModelInputs(VECTOR, ACTIONS, ModelSpec.model_validate({"fcnet_hiddens": [16, 12], **options}))
    torch.manual_seed(0)
    return {
        "policy": inputs.policy(value=True),
        "state_value": inputs.state_value(),
        "critics": inputs.critics(2),
        "action_values": inputs.action_values(2),
    }


def compute_output(net: nn.Module) -> torch.Tensor:
    if isinstance(net, PolicyModule):
        return net.forward_train(BATCH)["action_dist_inputs"]
    result: torch.Tensor = net({**BATCH, "actions": torch.zeros(10, dtype=torch.int64)})
    return result


class TestDropout:
    @pytest.mark.parametrize("name", ["policy", "state_value", "critics", "action_values"])
    def test_dropout_applies_in_training_only(self, name: str) -> None:
        net, dropout_net = build_networks()[name], build_networks(dropout=0.5)[name]
        dropout_net.train()
        assert not torch.equal(compute_output(dropout_net), compute_output(dropout_net))
        with torch.no_grad():  # as losses compute targets, with networks in training mode
            torch.testing.assert_close(compute_output(dropout_net), compute_output(net), rtol=0, atol=0)
        torch.testing.assert_close(compute_output(dropout_net.eval()), compute_output(net), rtol=0, atol=0)
        target = frozen_copy(dropout_net).train()
        assert torch.equal(compute_output(target), compute_output(target))

    def test_weight_names_do_not_depend_on_dropout(self) -> None:
        build_policy_module(dropout=0.5).set_state(build_policy_module().get_state())

    def test_option_applies_to_heads(self) -> None:
        head = build_policy_module(dropout=0.5, fcnet_hiddens=[]).pi
        assert sum(isinstance(layer, nn.Dropout) for layer in head.modules()) == 1


class TestLayerNorm:
    @pytest.mark.parametrize("name", ["policy", "state_value", "critics", "action_values"])
    def test_inputs_of_activations_are_normalised(self, name: str) -> None:
        net = build_networks(layer_norm=True, fcnet_activation="relu")[name]
        activation_inputs: list[torch.Tensor] = []
        for layer in net.modules():
            if isinstance(layer, nn.ReLU):
                layer.register_forward_pre_hook(lambda _, inputs: activation_inputs.append(inputs[0].clone()))
        compute_output(net)
        assert len(activation_inputs) >= 2
        for features in activation_inputs:
            torch.testing.assert_close(features.mean(-1), torch.zeros(features.shape[:-1]), atol=1e-5, rtol=0)
            assert (features.var(-1, correction=0) > 0.9).all()

    def test_option_applies_to_heads(self) -> None:
        head = build_policy_module(layer_norm=True, fcnet_hiddens=[]).pi
        assert sum(isinstance(layer, nn.LayerNorm) for layer in head.modules()) == 1


WEIGHT_PREFIXES = {
    "fcnet": ("encoder._stack.", "vf_encoder._stack."),
    "head_fcnet": ("pi.", "vf."),
    "conv": ("encoder._leaves.", "vf_encoder._leaves."),
    "recurrent": ("memory.", "vf_memory."),
}


class TestInitialisers:
    @pytest.mark.parametrize("layer_kind", WEIGHT_PREFIXES)
    @pytest.mark.parametrize("parameter_kind", ["kernel", "bias"])
    def test_initialiser_applies_to_its_layers_only(self, layer_kind: str, parameter_kind: str) -> None:
        initializer = {"name": "constant_", "kwargs": {"val": 0.25}}
        options = {f"{layer_kind}_{parameter_kind}_initializer": initializer}
        module = build_policy_module(IMAGE, conv_filters=[[4, 3, 1], [5, 3, 2]], **options)
        filled_names = {name for name, weights in module.named_parameters() if (weights == 0.25).all()}
        expected_names = {
            name
            for name, _ in module.named_parameters()
            if name.startswith(WEIGHT_PREFIXES[layer_kind])
            and ("weight" in name) == (parameter_kind == "kernel")
        }
        assert filled_names == expected_names != set()

    @pytest.mark.parametrize(
        "name", ["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal", "orthogonal"]
    )
    def test_initialiser_by_name_equals_torch(self, name: str) -> None:
        torch.manual_seed(3)
        model = ModelSpec(fcnet_hiddens=[40], fcnet_kernel_initializer=name)
        weights = Encoder(VECTOR, model)._stack[0].weight
        torch.manual_seed(3)
        expected = nn.Linear(6, 40).weight
        getattr(nn.init, f"{name}_")(expected)
        assert torch.equal(weights, expected)

    def test_gain_of_initialiser_replaces_default_gain(self) -> None:
        initialiser = {"name": "orthogonal", "kwargs": {"gain": 3.0}}
        model = ModelSpec.model_validate({"fcnetHiddens": [6], "fcnetKernelInitializer": initialiser})
        weights = Encoder(VECTOR, model)._stack[0].weight
        torch.testing.assert_close(weights @ weights.T, 9.0 * torch.eye(6))

    @pytest.mark.parametrize("name", ["critics", "action_values"])
    def test_members_are_initialised_independently(self, name: str) -> None:
        options = {"fcnet_kernel_initializer": "xavier_uniform", "head_fcnet_bias_initializer": "ones"}
        modules = build_networks(**options)[name].modules()
        *hidden_layers, last = [module for module in modules if isinstance(module, MemberLinear)]
        for layer in hidden_layers:
            bound = (6 / sum(layer.weight.shape[1:])) ** 0.5
            assert 0.9 * bound < layer.weight.abs().max() <= bound
            assert not torch.equal(layer.weight[0], layer.weight[1])
        assert (last.bias == 1).all()

    def test_invalid_initialiser_arguments_are_refused(self) -> None:
        initialiser = {"name": "kaiming_uniform", "kwargs": {"nonlinearity": "cubic"}}
        with pytest.raises(SpecError, match=r"initialiser kaiming_uniform with .* raised ValueError: Unsup"):
            build_policy_module(fcnet_kernel_initializer=initialiser)


class TestConvPadding:
    @pytest.mark.parametrize("stride", [1, 2, 3])
    @pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
    def test_same_padding_divides_sides_by_stride(self, kernel: int, stride: int) -> None:
        filters = [[4, kernel, stride], [3, kernel, stride]]
        encoder = Encoder(IMAGE, ModelSpec(fcnet_hiddens=[], conv_filters=filters, conv_padding="same"))
        sides = [math.ceil(math.ceil(side / stride) / stride) for side in IMAGE.shape[:2]]
        assert encoder.output_size == 3 * sides[0] * sides[1]
        assert encoder({"obs": torch.zeros(2, *IMAGE.shape)}).shape == (2, encoder.output_size)

    def test_same_padding_at_stride_one_equals_torch(self) -> None:
        options = {"conv_filters": [[3, 3, 1]], "conv_padding": "same", "conv_activation": "linear"}
        model = ModelSpec(fcnet_hiddens=[], **options)
        encoder = Encoder(IMAGE, model)
        (layer,) = [module for module in encoder.modules() if isinstance(module, nn.Conv2d)]
        images = torch.rand(2, *IMAGE.shape) * 255
        expected = functional.conv2d(images.movedim(-1, 1) / 255, layer.weight, layer.bias, padding="same")
        torch.testing.assert_close(encoder({"obs": images}), expected.flatten(1))

    def test_filters_too_large_suggest_same_padding(self) -> None:
        with pytest.raises(SpecError, match="use smaller kernels or strides, or convPadding: same"):
            Encoder(IMAGE, ModelSpec(conv_filters=[[4, 10, 1]]))


def test_sees_images_if_any_leaf_is_an_image() -> None:
    """A small Box of rank 3 is an image only if filters are set."""
    assert not sees_images(VECTOR, ModelSpec())
    assert sees_images(gym.spaces.Dict(a=VECTOR, b=IMAGE), ModelSpec())
    assert not sees_images(gym.spaces.Box(-1, 1, (3, 3, 3)), ModelSpec())
    assert sees_images(gym.spaces.Box(-1, 1, (3, 3, 3)), ModelSpec(conv_filters=[]))


def test_noise_map_uses_the_head_initialisers() -> None:
    model = ModelSpec(fcnet_hiddens=[16], head_fcnet_hiddens=[8], head_fcnet_bias_initializer="ones")
    layers = [module for module in NoiseMap(VECTOR, 2, model).modules() if isinstance(module, nn.Linear)]
    assert [layer.bias.mean().item() for layer in layers] == [0, 1, 1]


def test_action_values_have_head_layers() -> None:
    model = ModelSpec(fcnet_hiddens=[16], head_fcnet_hiddens=[8, 4], head_fcnet_bias_initializer="ones")
    modules = ModelInputs(VECTOR, ACTIONS, model).action_values().modules()
    layers = [module for module in modules if isinstance(module, MemberLinear)]
    assert [tuple(layer.weight.shape[1:]) for layer in layers] == [(6, 16), (16, 8), (8, 4), (4, 3)]
    assert [layer.bias.mean().item() for layer in layers] == [0, 1, 1, 1]


def test_decision_transformer_supports_free_log_std() -> None:
    actions = gym.spaces.Box(-1, 1, (2,))
    options = {"free_log_std": True, "module_options": {"size": 4}}
    policy = ReturnPolicy(VECTOR, actions, ModelSpec(fcnet_hiddens=[4], distribution="gaussian", **options))
    dist_inputs = policy(BATCH)["action_dist_inputs"]
    assert dist_inputs.shape == (10, 4)
    assert (dist_inputs[:, 2:] == 0).all()
    assert not (dist_inputs[:, :2] == 0).any()
