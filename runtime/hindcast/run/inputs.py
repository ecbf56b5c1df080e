"""The data of a training: what its inputs ask for, made ready before any learner opens them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from hindcast.api import OfflineTraining
from hindcast.api.input import InputSource
from hindcast.datasets.prepare.opening import ready
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.watch import Watch
from hindcast.errors import SpecError
from hindcast.pipeline.offline_data import Input
from hindcast.report.events import Progress, Reporter
from hindcast.run.claim import title
from hindcast.run.folders import run_folder
from hindcast.run.offline import Inputs
from hindcast.run.prelearner_inputs import maps_rows, read_by_rows, training_options
from hindcast.run.spaces import check_spaces
from hindcast.run.training import SUCCESS_FILE


class References(Protocol):
    """Finds the resources that a resource refers to."""

    def dataset(self, recording: str) -> str | None:
        """Path of what an OfflineRecording wrote, or will write; None where there is none of that name."""

    def policy(self, training: str) -> str:
        """Path of an OfflineTraining's checkpoint.

        Raises:
            DataError: there is none.
        """


class Asked(NamedTuple):
    """An input of a training: what is read and how, its weight, and the share of its episodes."""

    reading: Reading
    weight: float | None
    top: float | None


def inputs_of(resource: OfflineTraining, references: References) -> list[Asked]:
    """What the recorded inputs ask for; a reference is the path of its recording's dataset.

    Raises:
        SpecError: a reference to a recording that is not there, or files without timesteps and no class that maps them.
    """
    return [
        _asked(resource, index, references)
        for index, source in enumerate(resource.spec.input)
        if source.sampler is None
    ]


def ready_inputs(
    resource: OfflineTraining,
    asked: list[Asked],
    reporter: Reporter | None = None,
    check: Callable[[], None] = lambda: None,
    ray_options: Mapping[str, Any] | None = None,
) -> Inputs:
    """The recorded inputs, prepared where they are not whole episodes in order.

    What preparing found is reported as notes.

    Args:
        check: called now and then; what it raises ends the preparation, which resumes from there the next time.
        ray_options: Ray's, for the tasks that prepare what is large.

    Raises:
        UserError: what keeps the data from being used.
    """
    name, listener = title(resource), reporter or Reporter()

    def progress(_: str, done: int, total: int) -> None:
        listener.progress(Progress(name, "Preparing the data", done, total, "pieces"))

    def note(message: str) -> None:
        listener.note(name, message)

    inputs: Inputs = []
    for index, (reading, weight, top) in enumerate(asked):
        watch = Watch(progress, note, check)
        if index == 0 and reading.options.mapper is None:
            watch = replace(watch, accept=partial(check_spaces, resource, name=str(reading.paths[0])))
        found = ready(reading, watch=watch, ray_options=ray_options)
        for said in (*found.unfinished, *found.notes):
            note(f"{reading.paths[0]}: {said}")
        inputs.append(Input(str(found.paths[0]), weight, reading.options.columns, top))
    return inputs


def inputs_of_finished(resource: OfflineTraining, asked: list[Asked]) -> Inputs | None:
    """The inputs as they are named, of a training that is finished: nothing is prepared any more. None of others."""
    if not run_folder(resource).child(SUCCESS_FILE).exists():
        return None
    return [
        Input(str(reading.paths[0]), weight, reading.options.columns, top) for reading, weight, top in asked
    ]


def _asked(resource: OfflineTraining, index: int, references: References) -> Asked:
    pipeline = resource.spec.pipeline
    where = f"{title(resource)}: spec.input[{index}]"
    source = read_by_rows(resource, resource.spec.input[index], where)
    path = _path(where, source, references)
    if not maps_rows(resource, source):
        return Asked(Reading.of(source, path), source.weight, source.top)
    if pipeline.pre_learner is None:
        raise SpecError(
            f"{where}.format is {source.format}: name the class that makes episodes of it in spec.pipeline.preLearner."
        )
    options = training_options(resource, source)
    reading = Reading.of(source, path, pipeline.pre_learner, pipeline.pre_learner_kwargs, options)
    return Asked(reading, source.weight, source.top)


def _path(where: str, source: InputSource, references: References) -> str:
    if source.path is not None:
        return source.path
    assert source.recording_ref is not None
    path = references.dataset(source.recording_ref.name)
    if path is None:
        raise SpecError(
            f"{where}.recordingRef: there is no OfflineRecording named {source.recording_ref.name!r} here."
        )
    return path
