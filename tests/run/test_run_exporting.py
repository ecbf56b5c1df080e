"""Exported policies act like the originals over whole episodes, for all kinds of spaces and states."""

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
from hindcast.run.export.exporting import export_policy
from layers import slow_except
from support import record, recording, train, trainable_space, training
from toy_environments import Homing, Recall

VECTOR_OBSERVATIONS = gym.spaces.Box(-2, 2, (3,), np.float32)
BOX_ACTIONS = gym.spaces.Box(-3, 3, (2,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
HOMING = {"id": "toy_environments:Homing"}
EXPORT_PAGE = Path(__file__).parents[2] / "docs" / "export.md"
CONVOLUTION = {"convFilters": [[4, 3, 2]], "fcnetHiddens": [8]}
UNEVEN_ACTIONS = gym.spaces.Box(np.float32([-1, 0]), np.float32([3, 5]))
DOUBLES = gym.spaces.Box(-2, 2, (3,), np.float64)
MEAN_STD = {"observationFilter": "MeanStd"}
BOUNDED_MODEL = {"distribution": "BoundedGaussian", "logStdMin": -5, "logStdMax": 2, "freeLogStd": True}
POLICIES: dict[str, tuple[gym.Space, gym.Space, dict[str, Any]]] = {
    "categorical": (VECTOR_OBSERVATIONS, gym.spaces.Discrete(3, start=2), {}),
    "gaussian": (VECTOR_OBSERVATIONS, UNEVEN_ACTIONS, MEAN_STD),
    "beyond its bounds": (VECTOR_OBSERVATIONS, gym.spaces.Box(-1, 1, (8,)), {"headFcnetHiddens": [64]}),
    "bounded": (VECTOR_OBSERVATIONS, gym.spaces.Box(-2, 2, (2, 2)), BOUNDED_MODEL),
    "squashed": (VECTOR_OBSERVATIONS, gym.spaces.Box(-2, 2, (2, 2)), {"distribution": "SquashedGaussian"}),
    "deterministic": (VECTOR_OBSERVATIONS, DOUBLES, {"distribution": "Deterministic"}),
    "float64": (DOUBLES, gym.spaces.MultiBinary(3), MEAN_STD),
    "stacked": (
        VECTOR_OBSERVATIONS,
        gym.spaces.MultiDiscrete([2, 3], start=[1, 0]),
        {"frameStack": 3, "distribution": "JointCategorical"},
    ),
    "masked": (
        gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(5), "observations": VECTOR_OBSERVATIONS}),
        gym.spaces.MultiDiscrete([2, 3], start=[2, 0]),
        {**MEAN_STD, "frameStack": 2, "distribution": "JointCategorical"},
    ),
    "image": (IMAGE, gym.spaces.Discrete(2), CONVOLUTION),
    "lstm": (VECTOR_OBSERVATIONS, gym.spaces.Discrete(2), {"recurrent": "LSTM", "cellSize": 8}),
    "gru": (VECTOR_OBSERVATIONS, gym.spaces.Box(-1, 1, (1,)), {"recurrent": "GRU", "cellSize": 8}),
    "composite": (
        gym.spaces.Dict(
            {
                "a": VECTOR_OBSERVATIONS,
                "b": gym.spaces.Tuple((gym.spaces.Discrete(3), VECTOR_OBSERVATIONS)),
                "c": gym.spaces.Box(-2, 2, (), np.float64),
            }
        ),
        gym.spaces.Dict(
            {
                "grip": gym.spaces.Discrete(2),
                "move": gym.spaces.Box(-3, 3, (2,)),
                "turn": gym.spaces.MultiDiscrete([2, 3]),
            }
        ),
        MEAN_STD,
    ),
}


def make_policy_case(name: str) -> Policy:
    observation, action, options = POLICIES[name]
    model = ModelSpec.model_validate({"fcnetHiddens": [8], **options})
    preprocessing = Preprocessing.from_specs(observation, action, model, EnvironmentSpec(id="None-v0"))
    torch.manual_seed(0)
    module = build_module(preprocessing.observation_space, preprocessing.action_space, model, value=True)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    observation.seed(0)
    observations = [preprocessing.leaves(observation.sample()) for _ in range(20)]
    preprocessing.update(
        {leaf: np.stack([obs[leaf] for obs in observations]) for leaf in preprocessing.filters}
    )
    return Policy(module.eval(), preprocessing, observation, action)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_onnx_acts_like_policy_over_whole_episodes(tmp_path: Path, name: str) -> None:
    policy = make_policy_case(name)
    policy.save(tmp_path / "module")
    result = export_policy(tmp_path / "module", tmp_path / "out")
    assert result.max_difference is not None
    assert result.max_difference <= 1e-5
    onnx_policy = OnnxPolicy(tmp_path / "out")
    policy.observation_space.seed(1)
    for _ in range(2):
        policy.reset()
        onnx_policy.reset()
        for _ in range(6):
            obs = policy.observation_space.sample()
            action, expected = onnx_policy(obs), policy(obs)
            assert policy.action_space.contains(action)
            assert_close(action, expected)


def assert_close(action: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_close(action[key], value)
        return
    assert np.asarray(action).dtype == np.asarray(expected).dtype
    assert np.asarray(action) == pytest.approx(np.asarray(expected), abs=1e-5)


TRANSFORMER = {"contextLength": 4, "embedSize": 8, "numLayers": 1}
DISCRETE_ACTIONS = gym.spaces.Discrete(3, start=1)
OPTIONS: dict[str, dict[str, Any]] = {
    "DQN": {"numQuantiles": 3, "dueling": True},
    "DecisionTransformer": {**TRANSFORMER, "targetReturn": 5.0},
    "FQL": {"actionChunk": 3},
}
ALGORITHMS: dict[str, tuple[gym.Space, dict[str, Any]]] = {
    name: (trainable_space(name, BOX_ACTIONS, DISCRETE_ACTIONS), OPTIONS.get(name, {})) for name in REGISTRY
}
ADDITIONAL_CASES: list[tuple[str, gym.Space, dict[str, Any]]] = [
    ("DecisionTransformer", DISCRETE_ACTIONS, TRANSFORMER),
    ("MARWIL", DISCRETE_ACTIONS, {}),
]
NETWORK_KINDS = ("DQN", "SAC")
"""Algorithms whose networks differ in kind, besides those that `test_export_of_run_acts_the_same_over_whole_episodes`
trains; those of the others are variations, which the soak exports."""


def make_algorithm_policy(
    algorithm: str, space: gym.Space, config: dict[str, Any], recurrent: str = "None"
) -> Policy:
    model = ModelSpec.model_validate({"fcnetHiddens": [8], "recurrent": recurrent, "cellSize": 8})
    preprocessing = Preprocessing.from_specs(VECTOR_OBSERVATIONS, space, model, EnvironmentSpec(id="None-v0"))
    torch.manual_seed(1)
    inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, model)
    return Policy(
        build(algorithm, config).networks(inputs)["policy"].eval(), preprocessing, VECTOR_OBSERVATIONS, space
    )


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("algorithm", "space", "config", "recurrent"),
    [
        *(
            pytest.param(name, *case, "None", marks=[] if name in NETWORK_KINDS else pytest.mark.minutes)
            for name, case in ALGORITHMS.items()
        ),
        *(pytest.param(*case, "None", marks=pytest.mark.minutes) for case in ADDITIONAL_CASES),
        ("DQN", *ALGORITHMS["DQN"], "LSTM"),
    ],
)
def test_exported_policies_of_algorithms_act_the_same(
    tmp_path: Path, algorithm: str, space: gym.Space, config: dict[str, Any], recurrent: str
) -> None:
    policy = make_algorithm_policy(algorithm, space, config, recurrent)
    policy.save(tmp_path / "module")
    assert (export_policy(tmp_path / "module", tmp_path / "out").max_difference or 0.0) <= 1e-5
    onnx_policy = OnnxPolicy(tmp_path / "out")
    VECTOR_OBSERVATIONS.seed(1)
    for step in range(7):
        obs = VECTOR_OBSERVATIONS.sample()
        assert_close(onnx_policy(obs, reward=0.5), policy(obs, reward=0.5 if step else None))


@pytest.mark.slow
def test_custom_recurrent_module_acts_the_same(tmp_path: Path) -> None:
    model = ModelSpec.model_validate({"moduleClass": "module_toys:SumOfObservations"})
    space = gym.spaces.Box(-2, 2, (4,))
    preprocessing = Preprocessing.from_specs(space, BOX_ACTIONS, model, EnvironmentSpec(id="None-v0"))
    spaces = preprocessing.observation_space, preprocessing.action_space
    torch.manual_seed(0)
    policy = Policy(build_module(*spaces, model, value=False).eval(), preprocessing, space, BOX_ACTIONS)
    policy.save(tmp_path / "module")
    export_policy(tmp_path / "module", tmp_path / "out", module_class="module_toys:SumOfObservations")
    onnx_policy = OnnxPolicy(tmp_path / "out")
    space.seed(1)
    first_obs = space.sample()
    first_actions = []
    for _ in range(2):
        policy.reset()
        onnx_policy.reset()
        first_actions.append(onnx_policy(first_obs))
        assert_close(first_actions[-1], policy(first_obs))
        for _ in range(4):
            obs = space.sample()
            assert_close(onnx_policy(obs), policy(obs))
    assert_close(*first_actions)
    # The same observation gives another action later, so the policy has a state.
    assert np.abs(np.asarray(onnx_policy(first_obs)) - first_actions[0]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [None, "FQL", "DecisionTransformer"])
def test_export_of_run_acts_the_same_over_whole_episodes(
    recall_data: Path, tmp_path: Path, algorithm: str | None
) -> None:
    """Exports from the run folder; a wrong or lost state would change the actions after the cue."""
    environment: gym.Env = Recall()
    spec_fields: dict[str, Any] = {
        "model": {"fcnetHiddens": [16], "recurrent": "GRU", "cellSize": 16, "maxSeqLen": 7}
    }
    data = recall_data
    if algorithm is not None:
        data, environment = tmp_path / "data", Homing()
        record(recording(tmp_path, environment=HOMING, duration={"episodes": 6}, output={"path": str(data)}))
        options = {**OPTIONS["DecisionTransformer"], "numLayers": 2}
        config = {"trainBatchSizePerLearner": 60, **(OPTIONS["FQL"] if algorithm == "FQL" else options)}
        spec_fields = {"algorithm": algorithm, "config": config}
    train(training(tmp_path, data, environment=None, stop={"updates": 5}, **spec_fields))
    policy = Policy.load(tmp_path / "test" / "r1")
    export_policy(tmp_path / "test" / "r1", tmp_path / "out")
    onnx_policy = OnnxPolicy(tmp_path / "out")
    for seed in range(3):
        policy.reset()
        onnx_policy.reset()
        obs, _ = environment.reset(seed=seed)
        reward, is_done = None, False
        while not is_done:
            expected = policy(obs, reward=reward)
            assert_close(onnx_policy(obs, reward=reward or 0.0), expected)
            obs, reward, terminated, truncated, _ = environment.step(expected)
            is_done = terminated or truncated


@pytest.mark.parametrize(
    "name", slow_except(["gaussian"], ["gaussian", "lstm", "composite", "image", "stacked"])
)
def test_torch_export_writes_description_and_program(tmp_path: Path, name: str) -> None:
    make_policy_case(name).save(tmp_path / "module")
    result = export_policy(tmp_path / "module", tmp_path / "out", "torch")
    assert result.max_difference is not None
    assert [Path(file).name for file in result.files] == ["policy.json", "policy.pt2"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["categorical", "bounded", "deterministic", "lstm", "composite"])
def test_exported_policy_that_samples_acts_like_policy_with_same_seed(tmp_path: Path, name: str) -> None:
    policy = make_policy_case(name)
    policy.save(tmp_path / "module")
    export_policy(tmp_path / "module", tmp_path / "out", explore=True)
    description = json.loads((tmp_path / "out" / "policy.json").read_bytes())
    assert description["explore"] == (name != "deterministic")
    onnx_policy = OnnxPolicy(tmp_path / "out", seed=3)
    policy.observation_space.seed(1)
    policy.reset(seed=3)
    actions = []
    for _ in range(8):
        obs = policy.observation_space.sample()
        actions.append(onnx_policy(obs))
        assert_close(actions[-1], policy(obs, explore=True))


def test_exported_flow_policy_that_samples_has_noise_and_is_compared(tmp_path: Path) -> None:
    make_algorithm_policy("FQL", *ALGORITHMS["FQL"]).save(tmp_path / "module")
    result = export_policy(tmp_path / "module", tmp_path / "out", "torch", explore=True)
    assert result.max_difference is not None
    inputs = json.loads((tmp_path / "out" / "policy.json").read_bytes())["inputs"]
    assert [port["noise"] for port in inputs if port["name"] == "noise"] == ["normal"]


def test_safetensors_export_loads_as_same_policy(tmp_path: Path) -> None:
    make_policy_case("lstm").save(tmp_path / "module")
    export_policy(tmp_path / "module", tmp_path / "out", "safetensors")
    assert Policy.load(tmp_path / "out").digest == make_policy_case("lstm").digest


def run_python(python: str | Path, program: str, folder: Path) -> str:
    """Run a program in an isolated interpreter with the folder as its argument; return its output."""
    command = [python, "-I", "-c", program, folder]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


COMPOSITE_PROGRAM = """
import json
import sys
for name in ("torch", "gymnasium", "ray", "hindcast", "pydantic"):
    sys.modules[name] = None
import numpy as np
sys.path.insert(0, sys.argv[1])
from policy import OnnxPolicy
policy = OnnxPolicy(sys.argv[1])
action = policy({"a": np.zeros(3, "float32"), "b": (1, np.zeros(3, "float32")), "c": 1.0})
print(json.dumps({"grip": int(action["grip"]), "move": action["move"].tolist()}))
"""


@pytest.fixture(scope="module")
def exported_composite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of an exported policy, and the original policy's action in `COMPOSITE_PROGRAM`."""
    folder, policy = tmp_path_factory.mktemp("composite"), make_policy_case("composite")
    policy.save(folder / "module")
    export_policy(folder / "module", folder / "out")
    return folder / "out", policy({"a": np.zeros(3, "float32"), "b": (1, np.zeros(3, "float32")), "c": 1.0})


def check_composite_action(python: str | Path, folder: Path, expected: Any) -> None:
    action = json.loads(run_python(python, COMPOSITE_PROGRAM, folder))
    assert action["grip"] == expected["grip"]
    assert action["move"] == pytest.approx(expected["move"], abs=1e-5)


@pytest.mark.slow
def test_onnx_export_imports_numpy_and_onnxruntime_only(exported_composite: tuple[Path, Any]) -> None:
    check_composite_action(sys.executable, *exported_composite)


@pytest.mark.slow
def test_onnx_export_runs_in_fresh_environment_of_60_mb(
    tmp_path: Path, exported_composite: tuple[Path, Any]
) -> None:
    """Installs the packages that docs/export.md names."""
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip_install(python, "numpy")
    bytes_before = folder_bytes(tmp_path / "venv")
    (requirement,) = re.findall(
        r"^pip install --no-compile numpy '(.+)'$", EXPORT_PAGE.read_text(), re.MULTILINE
    )
    pip_install(python, "--no-compile", "numpy", requirement)
    assert folder_bytes(tmp_path / "venv") - bytes_before < 60e6
    check_composite_action(python, *exported_composite)


def pip_install(python: Path, *arguments: str) -> None:
    """Install packages; without a package index the test is skipped, or fails in CI."""
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"pip cannot install {' '.join(arguments)}: {completed.stderr.strip().splitlines()[-1]}")
    assert completed.returncode == 0, completed.stderr


def folder_bytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.slow
def test_loading_policy_does_not_import_ray(tmp_path: Path) -> None:
    make_policy_case("lstm").save(tmp_path / "module")
    program = """
import sys
sys.modules["ray"] = None
from hindcast import Policy
print(Policy.load(sys.argv[1])([0.0, 0.0, 0.0]))
"""
    command = [sys.executable, "-c", program, tmp_path / "module"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert int(completed.stdout) in (0, 1)


def test_export_that_acts_differently_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_policy_case("squashed").save(tmp_path / "module")
    monkeypatch.setattr(
        "hindcast.models.exported_policy._ActionsToEnv.forward",
        lambda _, actions: {leaf: rows * 3 for leaf, rows in actions.items()},
    )
    with pytest.raises(DataError, match="acts differently from the original: an action differs by"):
        export_policy(tmp_path / "module", tmp_path / "out", "torch")
    assert not (tmp_path / "out").exists()


class TestMistakes:
    def test_unsupported_network_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make_policy_case("categorical").save(tmp_path / "module")

        def raise_error(*_: object, **__: object) -> None:
            raise RuntimeError("no such operator\nand a page of traces")

        monkeypatch.setattr("torch.export.export", raise_error)
        with pytest.raises(SpecError, match=r"cannot be exported with ONNX: no such operator$"):
            export_policy(tmp_path / "module", tmp_path / "out")

    def test_dataset_without_policy_is_reported(self, tmp_path: Path) -> None:
        record(recording(tmp_path / "data", duration={"episodes": 1}))
        for reason in ("was recorded by a random policy and contains", "is a dataset that contains"):
            message = rf"data {reason} no policy: use a checkpoint, or a run folder\.$"
            with pytest.raises(DataError, match=message):
                export_policy(tmp_path / "data", tmp_path / "out")
            (tmp_path / "data/_hindcast/spec.json").write_text("{")  # as of another tool

    def test_folder_without_readable_policy_is_refused(self, tmp_path: Path) -> None:
        message = r"does not contain policy.onnx and policy.json: write them with hindcast export"
        with pytest.raises(ValueError, match=message):
            OnnxPolicy(tmp_path)
        (tmp_path / "policy.onnx").touch()
        (tmp_path / "policy.json").write_text(json.dumps({"formatVersion": 2}))
        with pytest.raises(ValueError, match="has format version 2"):
            OnnxPolicy(tmp_path)

    @pytest.mark.slow
    def test_observation_of_other_shape_is_refused(self, exported_composite: tuple[Path, Any]) -> None:
        observation = {"a": np.zeros(2), "b": (1, np.zeros(3)), "c": 1.0}
        with pytest.raises(
            ValueError, match=r"the observation's obs/a has shape \[2\], expected shape \[3\]"
        ):
            OnnxPolicy(exported_composite[0])(observation)
