"""Episodes that a training sets aside, for a last look at its policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from hindcast.api.metadata import Reference
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.errors import SpecError
from hindcast.run.carry_out import InFiles, train_here
from hindcast.run.inputs import inputs_of
from hindcast.run.interruption import Interruption
from hindcast.run.last_evaluation import episodes_set_aside
from support import MemoryReporter, recording, train, training

SET_ASIDE = {"offline": {"heldOut": 0.4, "heldOutSeed": 3, "setAside": 0.25}}


def ids(dataset: Dataset) -> set[str]:
    return set(dataset.episode_table().eps_id.tolist())


def test_the_episodes_of_a_run_are_those_of_its_split(tmp_path: Path, walks: Path) -> None:
    train(training(tmp_path, walks, evaluation=SET_ASIDE))
    rest, aside = open_dataset(walks).split(0.25, seed=3)
    assert ids(episodes_set_aside(tmp_path / "test/r1/module")) == ids(aside)
    assert not ids(rest) & ids(aside)


def test_a_source_must_have_enough_episodes(tmp_path: Path, walks: Path) -> None:
    few = {"offline": {"heldOut": 0.4, "setAside": 0.001}}
    with pytest.raises(
        SpecError, match=r"setAside is 0.001, and .* has 40 episodes: 0 would be set aside and 40"
    ):
        train(training(tmp_path, walks, evaluation=few))


def test_the_data_of_a_recording_are_to_be_named(tmp_path: Path, walks: Path) -> None:
    resource = training(tmp_path, walks, evaluation=SET_ASIDE)
    source = {"path": None, "recording_ref": Reference(name="test")}
    inputs = [resource.spec.input[0].model_copy(update=source)]
    resource = resource.model_copy(update={"spec": resource.spec.model_copy(update={"input": inputs})})
    references = InFiles({"OfflineRecording/test": recording(walks)})
    train_here(resource, inputs_of(resource, references), MemoryReporter(), Interruption())
    with pytest.raises(
        SpecError, match=r"needs the data that OfflineTraining/test was trained on: .*inputs \(1\) with"
    ):
        episodes_set_aside(tmp_path / "test/r1")
    named = episodes_set_aside(tmp_path / "test/r1", [str(walks)])
    assert ids(named) == ids(open_dataset(walks).split(0.25, seed=3)[1])
