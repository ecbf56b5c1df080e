"""Carries out the resources of files, here, in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hindcast.api import Loaded, OfflineRecording, OfflineTraining
from hindcast.errors import DataError, SpecError
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.run.claim import title
from hindcast.run.events import Outcome, Reporter
from hindcast.run.interruption import Interruption, interruptible
from hindcast.run.order import in_order
from hindcast.run.recording import RecordingRun
from hindcast.run.report import write_recording_report, write_training_report
from hindcast.run.session import Inputs
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
    outcomes: list[Outcome] = []
    with interruptible() as interruption:
        for resource in resources.values():
            outcome = _carry_out(resource, resources, reporter, interruption)
            reporter.finished(outcome)
            outcomes.append(outcome)
    return outcomes


def _carry_out(
    resource: OfflineRecording | OfflineTraining, resources: Resources, reporter: Reporter, interruption: Interruption
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
        SpecError: live sampling, or a reference to a recording that is not there.
    """
    inputs: Inputs = []
    for index, source in enumerate(resource.spec.input):
        if source.path is not None:
            inputs.append((source.path, source.weight))
            continue
        if source.recording_ref is None:
            raise SpecError(f"{title(resource)}: spec.input.{index}.sampler: live sampling is not available yet.")
        recording = resources.get(f"OfflineRecording/{source.recording_ref.name}")
        if not isinstance(recording, OfflineRecording):
            raise SpecError(
                f"{title(resource)}: spec.input.{index}.recordingRef: there is no OfflineRecording named "
                f"{source.recording_ref.name!r} here."
            )
        inputs.append((recording.spec.output.path, source.weight))
    return inputs


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
