"""Episodes that a training sets aside for the final evaluation of its policy."""

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
from hindcast.run.evaluation.held_out_evaluation import merge_datasets, split_episodes
from hindcast.run.execute import FileReferences, train_locally
from hindcast.run.final_evaluation import load_set_aside
from hindcast.run.inputs import resolve_inputs
from hindcast.run.interruption import Interruption
from support import MemoryReporter, recording, train, training

SET_ASIDE_EVALUATION = {"offline": {"heldOut": 0.4, "heldOutSeed": 3, "setAside": 0.25}}


def episode_ids(dataset: Dataset) -> set[str]:
    return set(dataset.episode_table().eps_id.tolist())


def test_load_set_aside_returns_split_of_run(tmp_path: Path, walks: Path) -> None:
    train(training(tmp_path, walks, evaluation=SET_ASIDE_EVALUATION))
    remaining, set_aside = open_dataset(walks).split(0.25, seed=3)
    assert episode_ids(load_set_aside(tmp_path / "test/r1/module")) == episode_ids(set_aside)
    assert not episode_ids(remaining) & episode_ids(set_aside)


def test_source_with_too_few_episodes_is_refused(tmp_path: Path, walks: Path) -> None:
    evaluation = {"offline": {"heldOut": 0.4, "setAside": 0.001}}
    with pytest.raises(
        SpecError, match=r"setAside is 0.001, and .* has 40 episodes: 0 would be set aside and 40"
    ):
        train(training(tmp_path, walks, evaluation=evaluation))


@pytest.mark.parametrize(("field", "seed"), [("heldOut", 1), ("setAside", 3)])
def test_held_out_episode_is_removed_from_all_sources(
    walks: Path, field: Literal["heldOut", "setAside"], seed: int
) -> None:
    """The sources are a dataset and its best episodes: equal fractions of them are different episodes."""
    dataset = open_dataset(walks)
    sources = [Source("best", dataset.filter(top=0.5)), Source("all", dataset)]
    offline = OfflineEvaluationSpec(held_out=0.25, set_aside=0.25, held_out_seed=seed)
    remaining_sources, holdouts = split_episodes(sources, offline, field)
    assert [holdout.num_episodes for holdout in holdouts] == [5, 10]
    assert episode_ids(holdouts[0]) != episode_ids(holdouts[1]) & episode_ids(sources[0].dataset), (
        "the seed must be one with which the sources hold out different episodes"
    )
    holdout_ids = episode_ids(holdouts[0]) | episode_ids(holdouts[1])
    assert [episode_ids(source.dataset) for source in remaining_sources] == [
        episode_ids(source.dataset) - holdout_ids for source in sources
    ]
    assert episode_ids(merge_datasets(holdouts, "Rename")) == holdout_ids


def test_load_set_aside_of_recording_requires_data(tmp_path: Path, walks: Path) -> None:
    resource = training(tmp_path, walks, evaluation=SET_ASIDE_EVALUATION)
    source = {"path": None, "recording_ref": Reference(name="test")}
    inputs = [resource.spec.input[0].model_copy(update=source)]
    resource = resource.model_copy(update={"spec": resource.spec.model_copy(update={"input": inputs})})
    references = FileReferences({"OfflineRecording/test": recording(walks)})
    train_locally(resource, resolve_inputs(resource, references), MemoryReporter(), Interruption())
    with pytest.raises(
        SpecError, match=r"needs the data that OfflineTraining/test was trained on: .*inputs \(1\) with"
    ):
        load_set_aside(tmp_path / "test/r1")
    set_aside = load_set_aside(tmp_path / "test/r1", [str(walks)])
    assert episode_ids(set_aside) == episode_ids(open_dataset(walks).split(0.25, seed=3)[1])
