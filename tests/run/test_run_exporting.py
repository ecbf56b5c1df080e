"""Policies taken away: they act as they did here, over whole episodes, whatever their spaces and state."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from hindcast.algorithms import REGISTRY, build
from hindcast.api import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.errors import DataError, SpecError
from hindcast.learn.algorithm import ModelInputs
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.onnx_policy import OnnxPolicy
from hindcast.run.exporting import export_policy
from support import record, recording, train, training
from toy_environments import Homing, Recall

VECTOR = gym.spaces.Box(-2, 2, (3,), np.float32)
BOX = gym.spaces.Box(-3, 3, (2,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
HOMING = {"id": "toy_environments:Homing"}
EXPORT_PAGE = Path(__file__).parents[2] / "docs" / "export.md"
CONVOLUTION = {"convFilters": [[4, 3, 2]], "fcnetHiddens": [8]}
POLICIES: dict[str, tuple[gym.Space, gym.Space, dict[str, Any]]] = {
    "categorical": (VECTOR, gym.spaces.Discrete(3, start=2), {}),
    "gaussian": (
        VECTOR,
        gym.spaces.Box(np.float32([-1, 0]), np.float32([3, 5])),
        {"observationFilter": "MeanStd"},
    ),
    "beyond its bounds": (VECTOR, gym.spaces.Box(-1, 1, (8,)), {"headFcnetHiddens": [64]}),
    "bounded": (
        VECTOR,
        gym.spaces.Box(-2, 2, (2, 2)),
        {"distribution": "BoundedGaussian", "logStdMin": -5, "logStdMax": 2, "freeLogStd": True},
    ),
    "squashed": (VECTOR, gym.spaces.Box(-2, 2, (2, 2)), {"distribution": "SquashedGaussian"}),
    "deterministic": (VECTOR, gym.spaces.Box(-2, 2, (1,), np.float64), {"distribution": "Deterministic"}),
    "float64": (
        gym.spaces.Box(-2, 2, (3,), np.float64),
        gym.spaces.MultiBinary(3),
        {"observationFilter": "MeanStd"},
    ),
    "stacked": (VECTOR, gym.spaces.MultiDiscrete([2, 3]), {"frameStack": 3}),
    "image": (IMAGE, gym.spaces.Discrete(2), CONVOLUTION),
    "lstm": (VECTOR, gym.spaces.Discrete(2), {"recurrent": "LSTM", "cellSize": 8}),
    "gru": (VECTOR, gym.spaces.Box(-1, 1, (1,)), {"recurrent": "GRU", "cellSize": 8}),
    "composite": (
        gym.spaces.Dict({"a": VECTOR, "b": gym.spaces.Tuple((gym.spaces.Discrete(3), VECTOR))}),
        gym.spaces.Dict({"grip": gym.spaces.Discrete(2), "move": gym.spaces.Box(-3, 3, (2,))}),
        {},
    ),
}


def policy_of(name: str) -> Policy:
    observation, action, options = POLICIES[name]
    model = ModelSpec.model_validate({"fcnetHiddens": [8], **options})
    preprocessing = Preprocessing.from_specs(observation, action, model, EnvironmentSpec(id="None-v0"))
    torch.manual_seed(0)
    module = build_module(preprocessing.observation_space, preprocessing.action_space, model, value=True)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    observation.seed(0)
    seen = [preprocessing.leaves(observation.sample()) for _ in range(20)]
    preprocessing.update({leaf: np.stack([each[leaf] for each in seen]) for leaf in preprocessing.filters})
    return Policy(module.eval(), preprocessing, observation, action)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_onnx_acts_as_the_policy_over_whole_episodes(tmp_path: Path, name: str) -> None:
    own = policy_of(name)
    own.save(tmp_path / "module")
    done = export_policy(tmp_path / "module", tmp_path / "out")
    assert done.max_difference is not None
    assert done.max_difference <= 1e-5
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


TRANSFORMER = {"contextLength": 4, "embedSize": 8, "numLayers": 1}
ALGORITHMS: dict[str, tuple[gym.Space, dict[str, Any]]] = {
    "BC": (BOX, {}),
    "CQL": (BOX, {}),
    "DQN": (gym.spaces.Discrete(3, start=1), {"numQuantiles": 3, "dueling": True}),
    "DecisionTransformer": (BOX, {**TRANSFORMER, "targetReturn": 5.0}),
    "DiscreteCQL": (gym.spaces.Discrete(3), {}),
    "FQL": (BOX, {"actionChunk": 3}),
    "IQL": (BOX, {}),
    "MARWIL": (gym.spaces.Discrete(2), {}),
    "PPO": (BOX, {}),
    "ReBRAC": (BOX, {}),
    "SAC": (BOX, {}),
    "TD3BC": (BOX, {}),
}
OTHERS: list[tuple[str, gym.Space, dict[str, Any]]] = [
    ("DecisionTransformer", gym.spaces.Discrete(3, start=1), TRANSFORMER),
]


def policy_from(algorithm: str, space: gym.Space, config: dict[str, Any]) -> Policy:
    model = ModelSpec.model_validate({"fcnetHiddens": [8]})
    preprocessing = Preprocessing.from_specs(VECTOR, space, model, EnvironmentSpec(id="None-v0"))
    torch.manual_seed(1)
    inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, model)
    return Policy(build(algorithm, config).networks(inputs)["policy"].eval(), preprocessing, VECTOR, space)


def test_every_algorithm_is_exported_here() -> None:
    assert ALGORITHMS.keys() == REGISTRY.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "space", "config"), [*((name, *each) for name, each in ALGORITHMS.items()), *OTHERS]
)
def test_policies_of_algorithms_act_the_same(
    tmp_path: Path, algorithm: str, space: gym.Space, config: dict[str, Any]
) -> None:
    own = policy_from(algorithm, space, config)
    own.save(tmp_path / "module")
    assert (export_policy(tmp_path / "module", tmp_path / "out").max_difference or 0.0) <= 1e-5
    exported = OnnxPolicy(tmp_path / "out")
    VECTOR.seed(1)
    for step in range(7):
        obs = VECTOR.sample()
        assert_close(exported(obs, reward=0.5), own(obs, reward=0.5 if step else None))


def test_a_users_recurrent_module(tmp_path: Path) -> None:
    model = ModelSpec.model_validate({"moduleClass": "module_toys:Sums"})
    seen = gym.spaces.Box(-2, 2, (4,))
    preprocessing = Preprocessing.from_specs(seen, BOX, model, EnvironmentSpec(id="None-v0"))
    spaces = preprocessing.observation_space, preprocessing.action_space
    torch.manual_seed(0)
    own = Policy(build_module(*spaces, model, value=False).eval(), preprocessing, seen, BOX)
    own.save(tmp_path / "module")
    export_policy(tmp_path / "module", tmp_path / "out", module_class="module_toys:Sums")
    exported = OnnxPolicy(tmp_path / "out")
    seen.seed(1)
    first = seen.sample()
    beginnings = []
    for _ in range(2):
        own.reset()
        exported.reset()
        beginnings.append(exported(first))
        assert_close(beginnings[-1], own(first))
        for _ in range(4):
            obs = seen.sample()
            assert_close(exported(obs), own(obs))
    assert_close(*beginnings)
    assert np.abs(np.asarray(exported(first)) - beginnings[0]).max() > 1e-3  # the state is carried


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [None, "FQL", "DecisionTransformer"])
def test_a_trained_run_acts_the_same_over_whole_episodes_of_its_environment(
    recalled: Path, tmp_path: Path, algorithm: str | None
) -> None:
    """Exported from its run folder; a wrong or lost state would show in the actions after the cue."""
    environment: gym.Env = Recall()
    changes: dict[str, Any] = {
        "model": {"fcnetHiddens": [16], "recurrent": "GRU", "cellSize": 16, "maxSeqLen": 7}
    }
    data = recalled
    if algorithm is not None:
        data, environment = tmp_path / "data", Homing()
        record(recording(tmp_path, environment=HOMING, duration={"episodes": 6}, output={"path": str(data)}))
        sizes = {**TRANSFORMER, "numLayers": 2} if algorithm == "DecisionTransformer" else {}
        changes = {"algorithm": algorithm, "config": {"trainBatchSizePerLearner": 60, **sizes}}
    train(training(tmp_path, data, environment=None, stop={"updates": 5}, **changes))
    own = Policy.load(tmp_path / "test" / "r1")
    export_policy(tmp_path / "test" / "r1", tmp_path / "out")
    exported = OnnxPolicy(tmp_path / "out")
    for seed in range(3):
        own.reset()
        exported.reset()
        obs, _ = environment.reset(seed=seed)
        reward, done = None, False
        while not done:
            expected = own(obs, reward=reward)
            assert_close(exported(obs, reward=reward or 0.0), expected)
            obs, reward, terminated, truncated, _ = environment.step(expected)
            done = terminated or truncated


@pytest.mark.parametrize("name", ["gaussian", "lstm", "composite", "image", "stacked"])
def test_a_torch_program(tmp_path: Path, name: str) -> None:
    policy_of(name).save(tmp_path / "module")
    done = export_policy(tmp_path / "module", tmp_path / "out", "torch")
    assert done.max_difference is not None
    assert [Path(file).name for file in done.files] == ["policy.json", "policy.pt2"]


def test_a_torch_program_of_a_flow(tmp_path: Path) -> None:
    policy_from("FQL", BOX, {"actionChunk": 3}).save(tmp_path / "module")
    assert export_policy(tmp_path / "module", tmp_path / "out", "torch").max_difference is not None


def test_the_policys_own_files(tmp_path: Path) -> None:
    policy_of("lstm").save(tmp_path / "module")
    export_policy(tmp_path / "module", tmp_path / "own", "safetensors")
    assert Policy.load(tmp_path / "own").digest == policy_of("lstm").digest


COMPOSITE_ACTS = """
import json
import sys
for name in ("torch", "gymnasium", "ray", "hindcast", "pydantic"):
    sys.modules[name] = None
import numpy as np
sys.path.insert(0, sys.argv[1])
from policy import OnnxPolicy
policy = OnnxPolicy(sys.argv[1])
action = policy({"a": np.zeros(3, "float32"), "b": (1, np.zeros(3, "float32"))})
print(json.dumps({"grip": int(action["grip"]), "move": action["move"].tolist()}))
"""


@pytest.fixture(scope="module")
def composite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An exported policy, and what it does in the program above."""
    folder, own = tmp_path_factory.mktemp("composite"), policy_of("composite")
    own.save(folder / "module")
    export_policy(folder / "module", folder / "out")
    return folder / "out", own({"a": np.zeros(3, "float32"), "b": (1, np.zeros(3, "float32"))})


def acted(python: str | Path, exported: Path) -> Any:
    done = subprocess.run(
        [python, "-I", "-c", COMPOSITE_ACTS, exported], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_onnx_needs_numpy_and_onnxruntime_alone(composite: tuple[Path, Any]) -> None:
    exported, expected = composite
    found = acted(sys.executable, exported)
    assert found["grip"] == expected["grip"]
    assert found["move"] == pytest.approx(expected["move"], abs=1e-5)


@pytest.mark.slow
def test_in_a_fresh_environment_of_60_mb_beyond_numpy(tmp_path: Path, composite: tuple[Path, Any]) -> None:
    """What docs/export.md says to install."""
    exported, expected = composite
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    installed(python, "numpy")
    before = size_of(tmp_path / "fresh")
    (command,) = re.findall(r"^pip install --no-compile numpy '(.+)'$", EXPORT_PAGE.read_text(), re.MULTILINE)
    installed(python, "--no-compile", "numpy", command)
    assert size_of(tmp_path / "fresh") - before < 60e6
    found = acted(python, exported)
    assert found["grip"] == expected["grip"]
    assert found["move"] == pytest.approx(expected["move"], abs=1e-5)


def installed(python: Path, *what: str) -> None:
    """Without a package index the test is skipped on a laptop, and fails in CI."""
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *what], capture_output=True, text=True, check=False
    )
    if done.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"pip cannot install {' '.join(what)}: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


def size_of(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.slow
def test_loading_a_policy_needs_no_ray(tmp_path: Path) -> None:
    policy_of("lstm").save(tmp_path / "module")
    program = """
import sys
sys.modules["ray"] = None
from hindcast import Policy
print(Policy.load(sys.argv[1])([0.0, 0.0, 0.0]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "module"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) in (0, 1)


def test_what_acts_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy_of("squashed").save(tmp_path / "module")
    monkeypatch.setattr(
        "hindcast.models.exported_policy._ActionsToEnv.forward",
        lambda _, actions: {leaf: rows * 3 for leaf, rows in actions.items()},
    )
    with pytest.raises(DataError, match="acts differently from the original: an action differs by"):
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

    @pytest.mark.parametrize(
        ("mark", "why"),
        [
            (None, "was recorded by a random policy, so it holds none"),
            ("{", "is a dataset that holds no policy"),
        ],
    )
    def test_a_dataset_without_a_policy(self, tmp_path: Path, mark: str | None, why: str) -> None:
        record(recording(tmp_path / "data", duration={"episodes": 1}))
        if mark is not None:
            (tmp_path / "data/_hindcast/spec.json").write_text(mark)
        with pytest.raises(DataError, match=rf"data {why}: give a checkpoint, or a run folder\.$"):
            export_policy(tmp_path / "data", tmp_path / "out")

    def test_a_folder_without_a_policy(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError, match=r"holds no policy.onnx and policy.json: write them with hindcast export"
        ):
            OnnxPolicy(tmp_path)

    def test_a_newer_format(self, tmp_path: Path) -> None:
        (tmp_path / "policy.onnx").touch()
        (tmp_path / "policy.json").write_text(json.dumps({"formatVersion": 2}))
        with pytest.raises(ValueError, match="is of format 2"):
            OnnxPolicy(tmp_path)

    def test_an_observation_of_another_shape(self, tmp_path: Path) -> None:
        policy_of("categorical").save(tmp_path / "module")
        export_policy(tmp_path / "module", tmp_path / "out")
        with pytest.raises(
            ValueError, match=r"the observation's obs is of shape \[2\]; the policy takes shape \[3\]"
        ):
            OnnxPolicy(tmp_path / "out")(np.zeros(2))
