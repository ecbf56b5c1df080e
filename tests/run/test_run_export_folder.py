"""Exports neither overwrite nor mix with files that no export wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hindcast.errors import OutputConflict
from hindcast.run.export.export_folder import refuse_foreign_files
from hindcast.run.export.exporting import Form, export_policy
from hindcast.storage.location import resolve
from support import WALK, make_policy, record, recording, train, training


@pytest.fixture(scope="module")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a saved policy."""
    folder = tmp_path_factory.mktemp("policy") / "saved"
    make_policy(WALK).save(folder)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, walks: Path) -> Path:
    """The folder of a run; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs")
    train(training(folder, walks, stop={"updates": 1}))
    return folder / "test/r1"


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(policy_folder: Path, folder: Path, form: Form, match: str) -> None:
    files_before = read_files(folder)
    with pytest.raises(OutputConflict, match=match):
        export_policy(policy_folder, folder, form)
    assert read_files(folder) == files_before


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
def test_user_files_are_refused(tmp_path: Path, policy_folder: Path, form: Form, name: str) -> None:
    (tmp_path / name).write_text('{"formatVersion": 1}')
    message = f"holds {name}, which hindcast export did not write: choose a new or an empty"
    assert_refused(policy_folder, tmp_path, form, message)


def test_message_counts_further_files(tmp_path: Path, policy_folder: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    assert_refused(policy_folder, tmp_path, "torch", r"holds 0\.txt, 1\.txt, 2\.txt and 2 more, which")


def test_dataset_folder_is_refused(tmp_path: Path, policy_folder: Path) -> None:
    record(recording(tmp_path, duration={"episodes": 2}))
    assert_refused(policy_folder, tmp_path, "torch", "which hindcast export did not write")


@pytest.mark.parametrize("pattern", [".", "module", "checkpoints", "checkpoints/*/module"])
@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_run_folder_is_refused(run_folder: Path, policy_folder: Path, pattern: str, form: Form) -> None:
    (folder,) = [run_folder] if pattern == "." else run_folder.glob(pattern)
    assert_refused(policy_folder, folder, form, "choose a new or an empty folder")


def test_policy_of_recording_is_refused(tmp_path: Path, policy_folder: Path) -> None:
    (tmp_path / "_hindcast").mkdir()
    (tmp_path / "_hindcast/spec.json").write_text("{}")
    message = "the policy of a run, a recording or a"
    assert_refused(policy_folder, tmp_path / "_hindcast/policy/module", "safetensors", message)


def test_new_folder_named_module_is_accepted(tmp_path: Path, policy_folder: Path) -> None:
    export_policy(policy_folder, tmp_path / "mine/module", "safetensors")
    export_policy(policy_folder, tmp_path / "mine/module", "safetensors")


@pytest.mark.slow  # imports torch's exporter
def test_repeated_export_and_other_form_keep_user_files(tmp_path: Path, policy_folder: Path) -> None:
    first_result = export_policy(policy_folder, tmp_path, "torch")
    export_policy(policy_folder, tmp_path, "safetensors")
    (tmp_path / "act.py").write_text("mine")
    assert export_policy(policy_folder, tmp_path, "torch") == first_result
    assert (tmp_path / "act.py").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {
        *("act.py", "policy.json", "policy.pt2"),
        *(path.name for path in policy_folder.iterdir()),
    }


@pytest.mark.slow
def test_repeated_onnx_export_refuses_user_loader(tmp_path: Path, policy_folder: Path) -> None:
    export_policy(policy_folder, tmp_path)
    (tmp_path / "__pycache__").mkdir()
    export_policy(policy_folder, tmp_path, "torch")
    export_policy(policy_folder, tmp_path)
    (tmp_path / "policy.py").write_text("mine = 1")
    assert_refused(policy_folder, tmp_path, "onnx", r"holds policy\.py, which")


@pytest.mark.slow
def test_export_after_killed_export_succeeds(tmp_path: Path, policy_folder: Path) -> None:
    export_policy(policy_folder, tmp_path, "torch")
    (tmp_path / "policy.pt2").unlink()
    (tmp_path / ".policy.pt2.0123abcd.tmp").touch()
    export_policy(policy_folder, tmp_path, "torch")
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh/.policy.json.0123abcd.tmp").touch()
    export_policy(policy_folder, tmp_path / "fresh", "torch")


def test_export_to_memory_store_refuses_user_files(policy_folder: Path) -> None:
    folder = resolve("memory://export-folder/out")
    refuse_foreign_files(folder, ["policy.json"])
    export_policy(policy_folder, str(folder), "safetensors")
    export_policy(policy_folder, str(folder), "safetensors")
    folder.child("policy.json").write_bytes(b"mine")
    with pytest.raises(OutputConflict, match=r"holds policy\.json, which"):
        export_policy(policy_folder, str(folder), "torch")
    assert folder.child("policy.json").read_bytes() == b"mine"


def test_copy_of_policy_is_overwritten(tmp_path: Path, policy_folder: Path) -> None:
    """A copy has the same files as an export, so the two cannot be distinguished."""
    shutil.copytree(policy_folder, tmp_path / "copy")
    export_policy(policy_folder, tmp_path / "copy", "safetensors")
