"""Every field of the resources is read by some code, or is in the table of fields without effect."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from field_readers import Readers, leaf_fields, parse_readers
from pydantic import BaseModel

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.recording import OfflineRecordingSpec
from hindcast.api.training import LearnersSpec, OfflineTrainingSpec
from hindcast.run.ineffective_fields import INEFFECTIVE_EVERYWHERE, INEFFECTIVE_ON_ONE_MACHINE

ROOT = Path(__file__).parents[2]
SPECS: tuple[type[BaseModel], ...] = (OfflineTrainingSpec, OfflineRecordingSpec)
ALSO_READ_ON_ONE_MACHINE = {"learners.replicas", "runners.cpus"}
"""Declared ineffective on one machine, but read there: for the batch size, and by a placement that ignores it."""


Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    packages = ("runtime/hindcast", "operator/hindcast_operator")
    return parse_readers(path for package in packages for path in ROOT.glob(f"{package}/**/*.py"))


def find_unread_fields(trees: Trees) -> set[str]:
    """Return the fields, by their YAML names, that no file outside of `hindcast.api` reads."""
    model_trees = [tree for path, tree in trees.items() if "api" in path.relative_to(ROOT).parts]
    reader_trees = [
        tree
        for path, tree in trees.items()
        if tree not in model_trees and path.name != "ineffective_fields.py"
    ]
    readers = Readers((OfflineTraining, OfflineRecording, *SPECS), reader_trees, model_trees)
    leaves = {leaf for spec in SPECS for leaf in leaf_fields(spec)}
    return {path for path, model, name in leaves if (model, name) not in readers.read_fields}


def test_field_without_reader_is_declared_ineffective(trees: Trees) -> None:
    assert find_unread_fields(trees) == set(INEFFECTIVE_EVERYWHERE)


def test_field_read_only_on_a_cluster_is_declared_so(trees: Trees) -> None:
    local_trees = {
        path: tree
        for path, tree in trees.items()
        if not {"cluster", "hindcast_operator"} & set(path.relative_to(ROOT).parts)
    }
    unread_fields = find_unread_fields(local_trees) - set(INEFFECTIVE_EVERYWHERE)
    declared_fields = {
        path
        for path in unread_fields
        for field in INEFFECTIVE_ON_ONE_MACHINE
        if f"{path}.".startswith(f"{field}.")
    }
    assert unread_fields - declared_fields == set()
    fields_read_anyway = [
        field
        for field in INEFFECTIVE_ON_ONE_MACHINE
        if not any(f"{path}.".startswith(f"{field}.") for path in unread_fields)
    ]
    assert set(fields_read_anyway) == ALSO_READ_ON_ONE_MACHINE


def test_readers_distinguish_models_with_equal_field_names() -> None:
    tree = ast.parse(
        "from hindcast.api import OfflineTraining\n"
        "def cpus(resource: OfflineTraining, other) -> float:\n"
        "    spec = resource.spec\n"
        "    workers, learners = spec.pipeline.data_workers, spec.learners\n"
        "    return workers.cpus + other.memory + other.learners.gpus\n"
    )
    read_fields = Readers((OfflineTraining,), [tree], []).read_fields
    assert {name for model, name in read_fields if model.__name__ == "DataWorkersSpec"} == {"cpus"}
    assert not [name for model, name in read_fields if model is LearnersSpec]
