"""Carries out the resources of files, here, in the order in which they need each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from hindcast.api import LoadedResource, OfflineRecording, OfflineTraining
from hindcast.api.metadata import Reference
from hindcast.api.sentences import format_path, parse_path
from hindcast.errors import DataError, Interrupted, SpecError, UserError
from hindcast.learn.checkpoint import CheckpointStore, find_checkpoint
from hindcast.models.rl_module import module_class_of
from hindcast.record.environments import make_environment
from hindcast.report.events import Outcome, Reporter
from hindcast.report.writing import write_recording_report, write_training_report
from hindcast.run.claim import CHECKPOINTS_FOLDER, refuse_other_run, run_folder, title
from hindcast.run.inputs import Input, References, inputs_of, open_inputs, sources_of
from hindcast.run.interruption import Interruption, catch_signals
from hindcast.run.offline_trainer import make_algorithm
from hindcast.run.placement import LOCAL, Placement
from hindcast.run.recording import RecordingRun
from hindcast.run.spaces import declared_spaces
from hindcast.run.trainer import new_learner
from hindcast.run.training import SUCCESS_FILE, TrainingRun, read_success
from hindcast.run.warm_start import initial_policy

_FIELD: Final = re.compile(r"spec(?:\.\w+|\[\d+\])+")
Resources = Mapping[str, OfflineRecording | OfflineTraining]
"""By title, `Kind/name`."""


class FileReferences:
    """References among the resources of files."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def dataset(self, recording: str) -> str | None:
        """Where the recording writes to."""
        found = self._resources.get(f"OfflineRecording/{recording}")
        return found.spec.output.path if isinstance(found, OfflineRecording) else None

    def policy(self, training: str) -> str:
        """The best checkpoint in the training's run folder."""
        found = self._resources[f"OfflineTraining/{training}"]
        assert isinstance(found, OfflineTraining)
        return str(find_checkpoint(run_folder(found).child(CHECKPOINTS_FOLDER)).location)


def execute(loaded: Sequence[LoadedResource], reporter: Reporter) -> list[Outcome]:
    """Record and train; finished work is skipped, unfinished work is resumed.

    Raises:
        Interrupted: asked to stop; what is done is kept.
        UserError: what went wrong, in one sentence.
    """
    ordered = {title(item.resource): item for item in sort_by_reference(loaded)}
    references = FileReferences({name: item.resource for name, item in ordered.items()})
    inputs: dict[str, list[Input]] = {}
    for name, item in ordered.items():
        with _located(item, is_alone=len(ordered) == 1):
            inputs[name] = check_early(item.resource, references)
    outcomes: list[Outcome] = []
    with catch_signals() as interruption:
        for name, item in ordered.items():
            with _located(item, is_alone=len(ordered) == 1):
                if isinstance(item.resource, OfflineRecording):
                    outcome = execute_recording(item.resource, references, reporter, interruption)
                else:
                    outcome = execute_training(item.resource, inputs[name], reporter, interruption)
            reporter.finished(outcome)
            outcomes.append(outcome)
    return outcomes


@contextmanager
def _located(item: LoadedResource, *, is_alone: bool) -> Iterator[None]:
    """Put the file, the line and the resource before the user's mistakes that are of a field or of one of several."""
    try:
        yield
    except Interrupted:
        raise
    except UserError as error:
        name = title(item.resource)
        text = str(error).removeprefix(f"{name}: ")
        if text.startswith("model."):  # whoever builds a network does not know whose it is
            text = f"spec.{text}" if item.resource.kind == "OfflineTraining" else f"spec.policy.train.{text}"
        field = _FIELD.match(text)
        if field is None and is_alone:
            raise
        steps = () if field is None else parse_path(field[0])
        error.args = (f"{item.at(*steps)}: {name}: {text}",)
        raise


def check_early(resource: OfflineRecording | OfflineTraining, references: References) -> list[Input]:
    """What can be found wrong before the first resource has worked for minutes.

    Returns:
        A training's inputs, which are not open yet.
    """
    if isinstance(resource, OfflineTraining):
        algorithm, spec = make_algorithm(resource), resource.spec
        module_class_of(spec.model)
        inputs = inputs_of(resource, references)
        if (spaces := declared_spaces(resource)) is not None:
            new_learner(algorithm, spaces, spec.model, spec.environment, seed=spec.seed)
        return inputs
    if resource.spec.policy.train is not None:
        module_class_of(resource.spec.policy.train.model)
    make_environment(resource.spec.environment).close()
    return []


def prepare_inputs(
    resource: OfflineTraining,
    inputs: Sequence[Input],
    reporter: Reporter,
    interruption: Interruption,
    ray_options: Mapping[str, Any] | None = None,
) -> Sequence[Input]:
    """A training's inputs with their data; of a finished one nothing is prepared or opened any more.

    Raises:
        OutputConflict: the run folder holds another training, which is finished.
        DataError: there is no policy at `spec.initialCheckpoint`, and the training has no checkpoint.
        UserError: what else keeps it from starting.
    """
    initial, folder = resource.spec.initial_checkpoint, run_folder(resource)
    if initial is not None and CheckpointStore(folder.child(CHECKPOINTS_FOLDER)).latest() is None:
        initial_policy(initial, resource.spec.model)  # before data are prepared for it
    if folder.child(SUCCESS_FILE).exists():
        refuse_other_run(folder, resource, has_progress=True)
    if read_success(resource, folder) is not None:
        return inputs
    return open_inputs(resource, inputs, reporter, interruption.check, ray_options)


def execute_recording(
    resource: OfflineRecording,
    references: References,
    reporter: Reporter,
    interruption: Interruption,
    placement: Placement = LOCAL,
) -> Outcome:
    """Record, and write the report."""
    checkpoint = _checkpoint_of(resource, references)
    run = RecordingRun(resource, reporter, interruption, checkpoint, placement)
    outcome = run.execute()
    return replace(outcome, report=write_recording_report(resource, outcome))


def execute_training(
    resource: OfflineTraining, inputs: Sequence[Input], reporter: Reporter, interruption: Interruption
) -> Outcome:
    """Train in this process, and write the report."""
    outcome, inputs = train_locally(resource, inputs, reporter, interruption)
    opened = {one.path: one.opened_data for one in inputs}
    return replace(outcome, report=write_training_report(resource, outcome, opened))


def train_locally(
    resource: OfflineTraining, inputs: Sequence[Input], reporter: Reporter, interruption: Interruption
) -> tuple[Outcome, Sequence[Input]]:
    """Train in this process; also the inputs with their data."""
    inputs = prepare_inputs(resource, inputs, reporter, interruption)
    return TrainingRun(resource, sources_of(inputs), reporter, interruption).execute(), inputs


def _checkpoint_of(resource: OfflineRecording, references: References) -> str | None:
    reference = resource.spec.policy.training_ref
    if reference is None:
        return None
    try:
        return references.policy(reference.name)
    except DataError as error:
        raise DataError(f"{title(resource)}: spec.policy.trainingRef: {error}") from error


def sort_by_reference(loaded: Sequence[LoadedResource]) -> list[LoadedResource]:
    """The resources, each after those it refers to; otherwise as they are written.

    Raises:
        SpecError: a reference to a resource that is not in the files, or a circle of references.
    """
    by_title = {title(item.resource): item for item in loaded}
    graph = {name: _references(item, by_title) for name, item in by_title.items()}
    try:
        names = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise SpecError(f"{' → '.join(error.args[1])}: each of these waits for the next one.") from error
    return [by_title[name] for name in names]


def _references(item: LoadedResource, known: dict[str, LoadedResource]) -> list[str]:
    needed: list[str] = []
    for reference, kind, steps in _references_of(item.resource):
        name = f"{kind}/{reference.name}"
        if name not in known:
            others = [other.partition("/")[2] for other in known if other.startswith(kind)]
            has = f"the given files define {', '.join(others) or 'none'}"
            raise SpecError(
                f"{item.at(*steps)}: {format_path(steps)}: there is no {kind} named "
                f"{reference.name!r}; {has}. Add its file to the command, or use a path."
            )
        needed.append(name)
    return needed


def _references_of(
    resource: OfflineRecording | OfflineTraining,
) -> list[tuple[Reference, str, tuple[str | int, ...]]]:
    """(reference, kind it refers to, path of the field) of each reference."""
    if isinstance(resource, OfflineTraining):
        return [
            (source.recording_ref, "OfflineRecording", ("spec", "input", index, "recordingRef"))
            for index, source in enumerate(resource.spec.input)
            if source.recording_ref is not None
        ]
    training = resource.spec.policy.training_ref
    return [] if training is None else [(training, "OfflineTraining", ("spec", "policy", "trainingRef"))]
