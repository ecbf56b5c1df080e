"""Carries out the resources of files, here, in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hindcast.api import Loaded, OfflineRecording, OfflineTraining
from hindcast.api.input import InputSource
from hindcast.errors import DataError, SpecError
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.record.environments import make_environment
from hindcast.run.claim import title
from hindcast.run.events import Outcome, Reporter
from hindcast.run.interruption import Interruption, interruptible
from hindcast.run.order import in_order
from hindcast.run.recording import RecordingRun
from hindcast.run.report.writing import write_recording_report, write_training_report
from hindcast.run.session import Inputs, make_algorithm
from hindcast.run.training import CHECKPOINTS_FOLDER, TrainingRun, run_folder

Resources = Mapping[str, OfflineRecording | OfflineTraining]
"""By title, `Kind/name`."""


def carry_out(loaded: Sequence[Loaded], reporter: Reporter) -> list[Outcome]:
    """Record and train; finished work is found finished, unfinished work goes on.

    Raises:
        Interrupted: asked to stop; what is done is kept.
        UserError: what went wrong, in one sentence.
    """
    ordered = in_order(loaded)
    resources = {title(item.resource): item.resource for item in ordered}
    for resource in resources.values():
        _check_early(resource, resources)
    outcomes: list[Outcome] = []
    with interruptible() as interruption:
        for resource in resources.values():
            outcome = _carry_out(resource, resources, reporter, interruption)
            reporter.finished(outcome)
            outcomes.append(outcome)
    return outcomes


def _check_early(resource: OfflineRecording | OfflineTraining, resources: Resources) -> None:
    """What can be found wrong before the first resource has worked for minutes."""
    if isinstance(resource, OfflineTraining):
        make_algorithm(resource)
        inputs_of(resource, resources)
    if resource.spec.environment is not None:
        make_environment(resource.spec.environment).close()


def _carry_out(
    resource: OfflineRecording | OfflineTraining,
    resources: Resources,
    reporter: Reporter,
    interruption: Interruption,
) -> Outcome:
    if isinstance(resource, OfflineRecording):
        recording = RecordingRun(resource, reporter, interruption, _checkpoint_of(resource, resources))
        outcome = recording.carry_out()
        report = write_recording_report(resource, outcome)
    else:
        inputs = inputs_of(resource, resources)
        outcome = TrainingRun(resource, inputs, reporter, interruption).carry_out()
        report = write_training_report(resource, outcome, [path for path, _ in inputs])
    return replace(outcome, report=report)


def inputs_of(resource: OfflineTraining, resources: Resources) -> Inputs:
    """Path and weight of each input; a reference is the path that its recording writes to.

    Raises:
        SpecError: a field that nothing carries out yet, or a reference to a recording that is not there.
    """
    inputs: Inputs = []
    for index, source in enumerate(resource.spec.input):
        _refuse_unready(f"{title(resource)}: spec.input.{index}", source)
        if source.path is not None:
            inputs.append((source.path, source.weight))
            continue
        assert source.recording_ref is not None
        recording = resources.get(f"OfflineRecording/{source.recording_ref.name}")
        if not isinstance(recording, OfflineRecording):
            raise SpecError(
                f"{title(resource)}: spec.input.{index}.recordingRef: there is no OfflineRecording named "
                f"{source.recording_ref.name!r} here."
            )
        inputs.append((recording.spec.output.path, source.weight))
    return inputs


def _refuse_unready(where: str, source: InputSource) -> None:
    """Fields that are modelled before anything carries them out."""
    given = {
        "sampler": source.sampler is not None,
        "columns": source.columns is not None,
        "filter": bool(source.filter),
        "schema": bool(source.schema_map),
    }
    for name, is_given in given.items():
        if is_given:
            raise SpecError(
                f"{where}.{name} is not available yet: leave it out, and prepare the data before."
            )


def _checkpoint_of(resource: OfflineRecording, resources: Resources) -> str | None:
    reference = resource.spec.policy.training_ref
    if reference is None:
        return None
    training = resources[f"OfflineTraining/{reference.name}"]
    assert isinstance(training, OfflineTraining)
    try:
        return str(find_checkpoint(run_folder(training).child(CHECKPOINTS_FOLDER)).location)
    except DataError as error:
        raise DataError(f"{title(resource)}: spec.policy.trainingRef: {error}") from error
