"""Custom modules: their inputs, and the errors about invalid ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import module_toys
from hindcast.api.model import ModelSpec
from hindcast.errors import SpecError, UserCodeError, UserError
from hindcast.models.dry_run import dry_run
from hindcast.models.rl_module import RLModule, build_module

OBS = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
BATCH = {"obs": torch.linspace(-1, 1, 20).reshape(5, 4)}
FILE = Path(module_toys.__file__)


def build_toy(name: str, value: bool = False, space: gym.Space = OBS, **options: Any) -> RLModule:
    torch.manual_seed(0)
    model = ModelSpec(module_class=f"module_toys:{name}", module_options=options)
    return build_module(space, gym.spaces.Discrete(3), model, value)


def find_line(text: str) -> int:
    """Return the number of the first line of `FILE` that contains the text."""
    return next(number for number, line in enumerate(FILE.read_text().splitlines(), 1) if text in line)


def test_module_class_is_imported_and_gets_its_options() -> None:
    module = build_toy("Net", units=5)
    assert isinstance(module, module_toys.Net)
    assert module.pi.in_features == 5
    assert module.forward_train(BATCH)["action_dist_inputs"].shape == (5, 3)


def test_rllib_style_module_reads_its_model_config() -> None:
    module = build_toy("RLlibModule", value=True, h=16)
    assert isinstance(module, module_toys.RLlibModule)
    assert module.pi.in_features == 16
    assert torch.equal(module.forward_train(BATCH)["vf_preds"], module.compute_values(BATCH))
    assert dict(module.model_config) == {"h": 16}
    assert dry_run(module) == []
    second_module = module_toys.RLlibModule(OBS, gym.spaces.Discrete(3), model_config={"h": 5})
    assert second_module.pi.in_features == 5
    with pytest.raises(UserCodeError, match=r"^creating RLlibModule raised AssertionError at "):
        build_toy("RLlibModule", units=5)


def test_default_module_can_be_subclassed() -> None:
    module, scaled_module = (build_toy("ScaledModule", value=True, scale=scale) for scale in (1.0, 3.0))
    outputs = module.forward_train(BATCH)["action_dist_inputs"]
    torch.testing.assert_close(3.0 * outputs, scaled_module.forward_train(BATCH)["action_dist_inputs"])
    assert dry_run(scaled_module) == []


def test_compute_values_defaults_to_the_training_pass() -> None:
    module = build_toy("Net", value=True).eval()
    assert torch.equal(module.compute_values(BATCH), module.forward_train(BATCH)["vf_preds"])
    with pytest.raises(NotImplementedError, match="Net has no value head"):
        build_toy("Net").compute_values(BATCH)


def test_missing_state_is_filled_with_the_initial_state() -> None:
    module = build_toy("SumOfObservations")
    first_outputs = module.forward_inference(BATCH)
    assert torch.equal(first_outputs["state_out/sum"], BATCH["obs"])
    second_outputs = module.forward_inference({**BATCH, "state_in/sum": first_outputs["state_out/sum"]})
    assert torch.equal(second_outputs["state_out/sum"], 2 * BATCH["obs"])
    meta_module = build_toy("SumOfObservations").to("meta")
    meta_outputs = meta_module.forward_inference({"obs": torch.zeros(5, 4, device="meta")})
    assert meta_outputs["state_out/sum"].device.type == "meta"
    sequences = module.forward_train({"obs": torch.ones(2, 3, 4)})
    assert sequences["action_dist_inputs"].shape == (2, 3, 3)
    assert torch.equal(sequences["state_out/sum"], torch.full((2, 4), 3.0))


@pytest.mark.parametrize("name", ["Net", "SumOfObservations", "LinearModule"])
@pytest.mark.parametrize("value", [False, True])
def test_dry_run_of_a_valid_module_reports_nothing(name: str, value: bool) -> None:
    assert dry_run(build_toy(name, value and name == "Net")) == []


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(4, start=2),
        gym.spaces.MultiDiscrete([3, 2], start=[1, 0]),
        gym.spaces.MultiBinary((2, 2)),
        gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
        gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        gym.spaces.Dict(a=gym.spaces.Box(-3, 3, (), np.int16), b=gym.spaces.Discrete(2)),
    ],
    ids=str,
)
def test_dry_run_works_in_any_observation_space(space: gym.Space) -> None:
    assert dry_run(build_toy("EncoderModule", space=space)) == []


def test_dry_run_changes_neither_module_nor_generator() -> None:
    module = build_toy("Net", dropout=0.5)
    state_before = module.get_state()
    torch_rng_state = torch.get_rng_state()
    dry_run(module)
    assert torch.equal(torch.get_rng_state(), torch_rng_state)
    assert all(torch.equal(state_before[name], tensor) for name, tensor in module.state_dict().items())
    assert module.training


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("RaisingModule", {}, r"^RaisingModule\._forward_train raised KeyError at {line}: 'pixels'$"),
        (
            "WideOutputs",
            {},
            r"^WideOutputs\._forward \({file}\) returns 'action_dist_inputs' as a tensor of shape \[3, 6\], "
            r"expected shape \[3, 3\]\.$",
        ),
        (
            "ReturnsTensor",
            {},
            r"^ReturnsTensor\._forward \({file}\) returns a tensor of shape \[3, 3\], expected a dictionary with "
            r"'action_dist_inputs'\.$",
        ),
        (
            "WithoutDistInputs",
            {},
            r"^WithoutDistInputs\._forward \({file}\) returns 'logits', but no 'action_dist_inputs' of shape ",
        ),
        (
            "IntegerOutputs",
            {},
            r"^IntegerOutputs\._forward_inference \({file}\) returns 'action_dist_inputs' of torch.int64, expected ",
        ),
        (
            "WithoutWeights",
            {},
            r"^spec\.model\.moduleClass: WithoutWeights \(.*\) has no trainable weights\.$",
        ),
        ("RaisesInSetup", {}, r"^creating RaisesInSetup raised AttributeError at {file}: .*no_such_option"),
        (
            "OverridesDistributionClass",
            {},
            r"^OverridesDistributionClass overrides get_train_action_dist_cls, which is never called: "
            r"model\.distribution sets",
        ),
        (
            "OtherArguments",
            {},
            r"^spec\.model\.moduleClass does not match OtherArguments\.__init__ \({file}\): missing a ",
        ),
        (
            "Net",
            {"unit": 8},
            r"^spec\.model\.moduleOptions does not match Net\.setup \({file}\): got an unexpected keyword "
            r"argument 'unit'\.$",
        ),
        (
            "NotAModule",
            {},
            r"^spec\.model\.moduleClass is 'module_toys:NotAModule', which is not a subclass of RLModule\.$",
        ),
        (
            "Missing",
            {},
            r"^spec\.model\.moduleClass is 'module_toys:Missing': the module 'module_toys' has no 'Missing'",
        ),
    ],
)
def test_invalid_module_is_refused_with_file_and_line(
    name: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as error:
        dry_run(build_toy(name, **options))
    file = re.escape(str(FILE))
    pattern = sentence.format(file=rf"{file}:\d+", line=f"{file}:{find_line('pixels')}")
    assert re.search(pattern, str(error.value))
    assert "\n" not in str(error.value)


def test_values_of_wrong_shape_are_refused() -> None:
    module = build_toy("Net", value=True)
    module.vf = torch.nn.Linear(8, 2)
    with pytest.raises(
        UserCodeError, match=r"Net\._forward_train \(.*\) returns 'vf_preds' as a tensor of shape \[5, 2\]"
    ):
        module.forward_train(BATCH)


def test_unused_layer_is_reported_with_file_and_line() -> None:
    (note,) = dry_run(build_toy("UnusedLayer"))
    location = f"{FILE}:{find_line('class UnusedLayer')}"
    assert note.field == ("spec", "model", "moduleClass")
    assert note.what.startswith(f"UnusedLayer.unused_layer ({location}) has weights that do ")


def test_default_module_accepts_no_options() -> None:
    model = ModelSpec(fcnet_hiddens=[8], module_options={"units": 3})
    assert dry_run(build_module(OBS, gym.spaces.Discrete(3), model)) == []
    with pytest.raises(SpecError, match="there is no module 'nowhere'"):
        build_module(OBS, gym.spaces.Discrete(3), ModelSpec(module_class="nowhere:Net"))
