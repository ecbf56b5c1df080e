"""Every field of the resources is read by something, or stands in the table of those that have no effect."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from field_readers import Readers, fields_below, parsed
from pydantic import BaseModel

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.recording import OfflineRecordingSpec
from hindcast.api.training import LearnersSpec, OfflineTrainingSpec
from hindcast.run.ineffective_fields import INEFFECTIVE_EVERYWHERE, INEFFECTIVE_ON_ONE_MACHINE

ROOT = Path(__file__).parents[2]
SPECS: tuple[type[BaseModel], ...] = (OfflineTrainingSpec, OfflineRecordingSpec)
LOOKED_AT_ALONE = {"learners.replicas", "runners.cpus"}
"""Read on one machine too, for the size of a batch and for a placement that has no use for it."""


Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    parts = ("runtime/hindcast", "operator/hindcast_operator")
    return parsed(path for part in parts for path in ROOT.glob(f"{part}/**/*.py"))


def unread(trees: Trees) -> set[str]:
    """Fields, by their YAML names, that no file outside of `hindcast.api` reads."""
    own = [tree for path, tree in trees.items() if "api" in path.relative_to(ROOT).parts]
    others = [tree for path, tree in trees.items() if tree not in own and path.name != "without_effect.py"]
    readers = Readers((OfflineTraining, OfflineRecording, *SPECS), others, own)
    leaves = {leaf for spec in SPECS for leaf in fields_below(spec)}
    return {place for place, model, name in leaves if (model, name) not in readers.read}


def test_a_field_without_a_reader_is_said_to_have_no_effect(trees: Trees) -> None:
    assert unread(trees) == set(INEFFECTIVE_EVERYWHERE)


def test_a_field_that_is_read_on_a_cluster_alone_is_said_to_be(trees: Trees) -> None:
    here = {
        path: tree
        for path, tree in trees.items()
        if not {"cluster", "hindcast_operator"} & set(path.relative_to(ROOT).parts)
    }
    found = unread(here) - set(INEFFECTIVE_EVERYWHERE)
    listed = {
        place
        for place in found
        for field in INEFFECTIVE_ON_ONE_MACHINE
        if f"{place}.".startswith(f"{field}.")
    }
    assert found - listed == set()
    stale = [
        field
        for field in INEFFECTIVE_ON_ONE_MACHINE
        if not any(f"{place}.".startswith(f"{field}.") for place in found)
    ]
    assert set(stale) == LOOKED_AT_ALONE


def test_a_reader_is_told_from_one_of_another_model() -> None:
    tree = ast.parse(
        "from hindcast.api import OfflineTraining\n"
        "def cpus(resource: OfflineTraining, other) -> float:\n"
        "    spec = resource.spec\n"
        "    workers, learners = spec.pipeline.data_workers, spec.learners\n"
        "    return workers.cpus + other.memory + other.learners.gpus\n"
    )
    read = Readers((OfflineTraining,), [tree], []).read
    assert {name for model, name in read if model.__name__ == "DataWorkersSpec"} == {"cpus"}
    assert not [name for model, name in read if model is LearnersSpec]
