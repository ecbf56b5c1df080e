"""Policies taken away: they act as they did here, over whole episodes, whatever their spaces and state."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from hindcast.algorithms import build
from hindcast.api import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.errors import DataError, SpecError
from hindcast.learn.algorithm import ModelInputs
from hindcast.models.connectors import Preprocessing
from hindcast.models.policy import Policy
from hindcast.models.rl_module import build_module
from hindcast.onnx_policy import OnnxPolicy
from hindcast.run.exporting import export_policy

VECTOR = gym.spaces.Box(-2, 2, (3,), np.float32)
BOX = gym.spaces.Box(-3, 3, (2,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
CONVOLUTION = {"convFilters": [[4, 3, 2]], "fcnetHiddens": [8]}
POLICIES: dict[str, tuple[gym.Space, gym.Space, dict[str, Any]]] = {
    "categorical": (VECTOR, gym.spaces.Discrete(3, start=2), {}),
    "gaussian": (
        VECTOR,
        gym.spaces.Box(np.float32([-1, 0]), np.float32([3, 5])),
        {"observationFilter": "meanStd"},
    ),
    "beyond its bounds": (VECTOR, gym.spaces.Box(-1, 1, (8,)), {"headFcnetHiddens": [64]}),
    "squashed": (VECTOR, gym.spaces.Box(-2, 2, (2, 2)), {"distribution": "squashedGaussian"}),
    "deterministic": (VECTOR, gym.spaces.Box(-2, 2, (1,), np.float64), {"distribution": "deterministic"}),
    "float64": (
        gym.spaces.Box(-2, 2, (3,), np.float64),
        gym.spaces.MultiBinary(3),
        {"observationFilter": "meanStd"},
    ),
    "stacked": (VECTOR, gym.spaces.MultiDiscrete([2, 3]), {"frameStack": 3}),
    "image": (IMAGE, gym.spaces.Discrete(2), CONVOLUTION),
    "lstm": (VECTOR, gym.spaces.Discrete(2), {"recurrent": "lstm", "cellSize": 8}),
    "gru": (VECTOR, gym.spaces.Box(-1, 1, (1,)), {"recurrent": "gru", "cellSize": 8}),
    "composite": (
        gym.spaces.Dict({"a": VECTOR, "b": gym.spaces.Tuple((gym.spaces.Discrete(3), VECTOR))}),
        gym.spaces.Dict({"grip": gym.spaces.Discrete(2), "move": gym.spaces.Box(-3, 3, (2,))}),
        {},
    ),
}


def policy_of(name: str) -> Policy:
    observation, action, options = POLICIES[name]
    model = ModelSpec.model_validate({"fcnetHiddens": [8], **options})
    preprocessing = Preprocessing.of(observation, action, model, EnvironmentSpec(id="None-v0"))
    torch.manual_seed(0)
    module = build_module(preprocessing.observation_space, preprocessing.action_space, model, value=True)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    observation.seed(0)
    seen = [preprocessing.leaves(observation.sample()) for _ in range(20)]
    preprocessing.update({leaf: np.stack([each[leaf] for each in seen]) for leaf in preprocessing.filters})
    return Policy(module.eval(), preprocessing, observation, action)


@pytest.mark.parametrize("name", POLICIES)
def test_onnx_acts_as_the_policy_over_whole_episodes(tmp_path: Path, name: str) -> None:
    own = policy_of(name)
    own.save(tmp_path / "module")
    done = export_policy(tmp_path / "module", tmp_path / "out")
    assert done.difference is not None
    assert done.difference <= 1e-5
    exported = OnnxPolicy(tmp_path / "out")
    own.observation_space.seed(1)
    for _ in range(2):
        own.reset()
        exported.reset()
        for _ in range(6):
            obs = own.observation_space.sample()
            action, expected = exported(obs), own(obs)
            assert own.action_space.contains(action)
            assert_close(action, expected)


def assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_close(found[key], value)
        return
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    assert np.asarray(found) == pytest.approx(np.asarray(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "space", "config"),
    [
        ("DQN", gym.spaces.Discrete(3, start=1), {"numQuantiles": 3}),
        ("TD3BC", BOX, {}),
        ("FQL", BOX, {}),
        ("FQL", BOX, {"actionChunk": 3}),
        ("DecisionTransformer", BOX, {"contextLength": 4, "embedSize": 8, "targetReturn": 5.0}),
        ("DecisionTransformer", gym.spaces.Discrete(3, start=1), {"contextLength": 4, "embedSize": 8}),
    ],
)
def test_policies_of_algorithms_act_alike(
    tmp_path: Path, algorithm: str, space: gym.Space, config: dict[str, Any]
) -> None:
    model = ModelSpec.model_validate({"fcnetHiddens": [8]})
    preprocessing = Preprocessing.of(VECTOR, space, model, EnvironmentSpec(id="None-v0"))
    torch.manual_seed(1)
    inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, model)
    own = Policy(build(algorithm, config).networks(inputs)["policy"].eval(), preprocessing, VECTOR, space)
    own.save(tmp_path / "module")
    assert (export_policy(tmp_path / "module", tmp_path / "out").difference or 0.0) <= 1e-5
    exported = OnnxPolicy(tmp_path / "out")
    VECTOR.seed(1)
    for step in range(7):
        obs = VECTOR.sample()
        assert_close(exported(obs, reward=0.5), own(obs, reward=0.5 if step else None))


@pytest.mark.parametrize("name", ["gaussian", "lstm"])
def test_a_torch_program_and_the_policys_own_files(tmp_path: Path, name: str) -> None:
    policy_of(name).save(tmp_path / "module")
    done = export_policy(tmp_path / "module", tmp_path / "out", "torch")
    assert done.difference is not None
    assert [Path(file).name for file in done.files] == ["policy.pt2", "policy.json"]
    export_policy(tmp_path / "module", tmp_path / "own", "safetensors")
    assert Policy.load(tmp_path / "own").digest == policy_of(name).digest


def test_onnx_needs_no_torch(tmp_path: Path) -> None:
    policy_of("composite").save(tmp_path / "module")
    export_policy(tmp_path / "module", tmp_path / "out")
    program = """
import sys
sys.modules["torch"] = sys.modules["gymnasium"] = sys.modules["ray"] = None
import numpy as np
from hindcast.onnx_policy import OnnxPolicy
policy = OnnxPolicy(sys.argv[1])
print(sorted(policy({"a": np.zeros(3, "float32"), "b": (1, np.zeros(3, "float32"))})))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "out"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['grip', 'move']\n"


def test_what_acts_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy_of("squashed").save(tmp_path / "module")
    monkeypatch.setattr(
        "hindcast.models.exported._ActionsToEnv.forward",
        lambda _, actions: {leaf: rows * 3 for leaf, rows in actions.items()},
    )
    with pytest.raises(DataError, match="acts otherwise than the policy: an action differs by"):
        export_policy(tmp_path / "module", tmp_path / "out", "torch")
    assert not (tmp_path / "out").exists()


class TestMistakes:
    def test_a_network_that_cannot_be_exported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        policy_of("categorical").save(tmp_path / "module")

        def raises(*_: object, **__: object) -> None:
            raise RuntimeError("no such operator\nand a page of traces")

        monkeypatch.setattr("torch.export.export", raises)
        with pytest.raises(SpecError, match=r"cannot be exported with ONNX: no such operator$"):
            export_policy(tmp_path / "module", tmp_path / "out")

    def test_a_folder_without_a_policy(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=r"holds no policy.onnx and policy.json: write them with hindcast export"
        ):
            OnnxPolicy(tmp_path)

    def test_a_newer_format(self, tmp_path: Path) -> None:
        (tmp_path / "policy.onnx").touch()
        (tmp_path / "policy.json").write_text(json.dumps({"formatVersion": 2}))
        with pytest.raises(DataError, match="is of format 2"):
            OnnxPolicy(tmp_path)

    def test_an_observation_of_another_shape(self, tmp_path: Path) -> None:
        policy_of("categorical").save(tmp_path / "module")
        export_policy(tmp_path / "module", tmp_path / "out")
        with pytest.raises(
            DataError, match=r"the observation's obs is of shape \[2\]; the policy takes shape \[3\]"
        ):
            OnnxPolicy(tmp_path / "out")(np.zeros(2))
