"""An export goes into a folder of its own: what somebody else put there is neither overwritten nor joined."""

from __future__ import annotations

import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from hindcast.api import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.errors import OutputConflict
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.run.export_folder import refuse_foreign_files
from hindcast.run.exporting import Format, export_policy
from hindcast.storage.location import resolve
from support import record, recording, train, training

OBSERVATION, ACTION = gym.spaces.Box(-2, 2, (3,), np.float32), gym.spaces.Discrete(2)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy's own files."""
    folder = tmp_path_factory.mktemp("policy") / "saved"
    model = ModelSpec.model_validate({"fcnetHiddens": [4]})
    preprocessing = Preprocessing.from_specs(OBSERVATION, ACTION, model, EnvironmentSpec(id="None-v0"))
    Policy(build_module(OBSERVATION, ACTION, model, value=True), preprocessing, OBSERVATION, ACTION).save(
        folder
    )
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(module: Path, folder: Path, form: Format, match: str) -> None:
    before = contents(folder)
    with pytest.raises(OutputConflict, match=match):
        export_policy(module, folder, form)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("onnx", "policy.py"),
        ("onnx", "policy.json"),
        ("torch", "policy.pt2"),
        ("torch", "policy.json"),
        ("safetensors", "module.json"),
        ("safetensors", "weights.safetensors"),
        ("safetensors", "notes.txt"),
    ],
)
def test_a_users_files_are_refused(tmp_path: Path, module: Path, form: Format, name: str) -> None:
    (tmp_path / name).write_text('{"formatVersion": 1}')
    refused(
        module, tmp_path, form, f"holds {name}, which hindcast export did not write: give a new or an empty"
    )


def test_many_files_are_counted(tmp_path: Path, module: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    refused(module, tmp_path, "torch", r"holds 0\.txt, 1\.txt, 2\.txt and 2 more, which")


def test_a_recorded_dataset_is_refused(tmp_path: Path, module: Path) -> None:
    record(recording(tmp_path, duration={"episodes": 2}))
    refused(module, tmp_path, "torch", "which hindcast export did not write")


@pytest.mark.parametrize("place", ["test/r1", "test/r1/module", "test/r1/checkpoints", "test/r1/*/*/module"])
@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_a_run_is_refused(tmp_path: Path, module: Path, place: str, form: Format) -> None:
    record(recording(tmp_path / "data", duration={"episodes": 4}))
    train(training(tmp_path, tmp_path / "data", stop={"updates": 1}))
    (folder,) = tmp_path.glob(place)
    refused(module, folder, form, "give a new or an empty folder")


def test_the_policy_that_a_recording_keeps_is_refused(tmp_path: Path, module: Path) -> None:
    (tmp_path / "_hindcast").mkdir()
    (tmp_path / "_hindcast/spec.json").write_text("{}")
    refused(
        module, tmp_path / "_hindcast/policy/module", "safetensors", "the policy of a run, a recording or a"
    )


def test_a_new_folder_named_module_is_fine(tmp_path: Path, module: Path) -> None:
    export_policy(module, tmp_path / "mine/module", "safetensors")
    export_policy(module, tmp_path / "mine/module", "safetensors")


def test_exports_again_and_in_another_form(tmp_path: Path, module: Path) -> None:
    once = export_policy(module, tmp_path, "torch")
    export_policy(module, tmp_path, "safetensors")
    (tmp_path / "act.py").write_text("mine")
    assert export_policy(module, tmp_path, "torch") == once
    assert (tmp_path / "act.py").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {
        *("act.py", "policy.json", "policy.pt2"),
        *(path.name for path in module.iterdir()),
    }


@pytest.mark.slow
def test_onnx_again_but_not_over_a_users_loader(tmp_path: Path, module: Path) -> None:
    export_policy(module, tmp_path)
    (tmp_path / "__pycache__").mkdir()
    export_policy(module, tmp_path, "torch")
    export_policy(module, tmp_path)
    (tmp_path / "policy.py").write_text("mine = 1")
    refused(module, tmp_path, "onnx", r"holds policy\.py, which")


def test_what_a_killed_export_left_is_not_in_the_way(tmp_path: Path, module: Path) -> None:
    export_policy(module, tmp_path, "torch")
    (tmp_path / "policy.pt2").unlink()
    (tmp_path / ".policy.pt2.0123abcd.tmp").touch()
    export_policy(module, tmp_path, "torch")
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh/.policy.json.0123abcd.tmp").touch()
    export_policy(module, tmp_path / "fresh", "torch")


def test_elsewhere_than_on_this_machine(module: Path) -> None:
    folder = resolve("memory://export-folder/out")
    refuse_foreign_files(folder, ["policy.json"])
    export_policy(module, str(folder), "safetensors")
    export_policy(module, str(folder), "safetensors")
    folder.child("policy.json").write_bytes(b"mine")
    with pytest.raises(OutputConflict, match=r"holds policy\.json, which"):
        export_policy(module, str(folder), "torch")
    assert folder.child("policy.json").read_bytes() == b"mine"


def test_a_copy_of_a_policy_may_be_exported_over(tmp_path: Path, module: Path) -> None:
    """It cannot be told from an export: these are the same files."""
    shutil.copytree(module, tmp_path / "copy")
    export_policy(module, tmp_path / "copy", "safetensors")
