"""Episodes that a training sets aside, for a last look at its policy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from hindcast.api.evaluation import OfflineEvaluationSpec
from hindcast.api.metadata import Reference
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.errors import SpecError
from hindcast.pipeline.offline_data import Source
from hindcast.run.execute import FileReferences, train_locally
from hindcast.run.final_evaluation import load_set_aside
from hindcast.run.held_out_evaluation import merge_datasets, split_episodes
from hindcast.run.inputs import inputs_of
from hindcast.run.interruption import Interruption
from support import MemoryReporter, recording, train, training

SET_ASIDE = {"offline": {"heldOut": 0.4, "heldOutSeed": 3, "setAside": 0.25}}


def ids(dataset: Dataset) -> set[str]:
    return set(dataset.episode_table().eps_id.tolist())


def test_the_episodes_of_a_run_are_those_of_its_split(tmp_path: Path, walks: Path) -> None:
    train(training(tmp_path, walks, evaluation=SET_ASIDE))
    rest, aside = open_dataset(walks).split(0.25, seed=3)
    assert ids(load_set_aside(tmp_path / "test/r1/module")) == ids(aside)
    assert not ids(rest) & ids(aside)


def test_a_source_must_have_enough_episodes(tmp_path: Path, walks: Path) -> None:
    few = {"offline": {"heldOut": 0.4, "setAside": 0.001}}
    with pytest.raises(
        SpecError, match=r"setAside is 0.001, and .* has 40 episodes: 0 would be set aside and 40"
    ):
        train(training(tmp_path, walks, evaluation=few))


@pytest.mark.parametrize(("field", "seed"), [("heldOut", 1), ("setAside", 3)])
def test_what_one_source_holds_out_is_trained_on_in_none(
    walks: Path, field: Literal["heldOut", "setAside"], seed: int
) -> None:
    """Of a dataset and its best episodes once more: both hold out the same share, but of different numbers."""
    whole = open_dataset(walks)
    sources = [Source("best", whole.filter(top=0.5)), Source("whole", whole)]
    offline = OfflineEvaluationSpec(held_out=0.25, set_aside=0.25, held_out_seed=seed)
    rests, shares = split_episodes(sources, offline, field)
    assert [share.num_episodes for share in shares] == [5, 10]
    assert ids(shares[0]) != ids(shares[1]) & ids(sources[0].dataset), "there is nothing to leave out"
    out = ids(shares[0]) | ids(shares[1])
    assert [ids(rest.dataset) for rest in rests] == [ids(source.dataset) - out for source in sources]
    assert ids(merge_datasets(shares, "Rename")) == out


def test_the_data_of_a_recording_are_to_be_named(tmp_path: Path, walks: Path) -> None:
    resource = training(tmp_path, walks, evaluation=SET_ASIDE)
    source = {"path": None, "recording_ref": Reference(name="test")}
    inputs = [resource.spec.input[0].model_copy(update=source)]
    resource = resource.model_copy(update={"spec": resource.spec.model_copy(update={"input": inputs})})
    references = FileReferences({"OfflineRecording/test": recording(walks)})
    train_locally(resource, inputs_of(resource, references), MemoryReporter(), Interruption())
    with pytest.raises(
        SpecError, match=r"needs the data that OfflineTraining/test was trained on: .*inputs \(1\) with"
    ):
        load_set_aside(tmp_path / "test/r1")
    named = load_set_aside(tmp_path / "test/r1", [str(walks)])
    assert ids(named) == ids(open_dataset(walks).split(0.25, seed=3)[1])
