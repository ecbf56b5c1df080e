"""Carries out the resources of files, here, in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from hindcast.api import Loaded, OfflineRecording, OfflineTraining
from hindcast.errors import DataError
from hindcast.learn.checkpoint import CheckpointStore, find_checkpoint
from hindcast.models.rl_module import module_class_of
from hindcast.record.environments import make_environment
from hindcast.report.events import Outcome, Reporter
from hindcast.report.writing import write_recording_report, write_training_report
from hindcast.run.claim import title
from hindcast.run.dependency_order import in_order
from hindcast.run.folders import CHECKPOINTS_FOLDER, run_folder
from hindcast.run.inputs import inputs_of, inputs_of_finished, ready_inputs
from hindcast.run.interruption import Interruption, interruptible
from hindcast.run.offline import make_algorithm
from hindcast.run.placement import HERE, Placement
from hindcast.run.recording import RecordingRun
from hindcast.run.training import TrainingRun
from hindcast.run.warm_start import initial_policy

Resources = Mapping[str, OfflineRecording | OfflineTraining]
"""By title, `Kind/name`."""


class References(Protocol):
    """Finds the resources that a resource refers to."""

    def dataset(self, recording: str) -> str | None:
        """Path of what an OfflineRecording wrote, or will write; None where there is none of that name."""

    def policy(self, training: str) -> str:
        """Path of an OfflineTraining's checkpoint.

        Raises:
            DataError: there is none.
        """


class InFiles:
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


def carry_out(loaded: Sequence[Loaded], reporter: Reporter) -> list[Outcome]:
    """Record and train; finished work is skipped, unfinished work is resumed.

    Raises:
        Interrupted: asked to stop; what is done is kept.
        UserError: what went wrong, in one sentence.
    """
    ordered = in_order(loaded)
    resources = {title(item.resource): item.resource for item in ordered}
    references = InFiles(resources)
    for resource in resources.values():
        check_early(resource, references)
    outcomes: list[Outcome] = []
    with interruptible() as interruption:
        for resource in resources.values():
            if isinstance(resource, OfflineRecording):
                outcome = carry_out_recording(resource, references, reporter, interruption)
            else:
                outcome = carry_out_training(resource, references, reporter, interruption)
            reporter.finished(outcome)
            outcomes.append(outcome)
    return outcomes


def check_early(resource: OfflineRecording | OfflineTraining, references: References) -> None:
    """What can be found wrong before the first resource has worked for minutes."""
    if isinstance(resource, OfflineTraining):
        make_algorithm(resource)
        module_class_of(resource.spec.model)
        inputs_of(resource, references)
    elif resource.spec.policy.train is not None:
        module_class_of(resource.spec.policy.train.model)
    if resource.spec.environment is not None:
        make_environment(resource.spec.environment).close()


def check_start(resource: OfflineTraining) -> None:
    """Refuse to start from a policy that is not there, before data are prepared for it.

    Raises:
        DataError: there is no policy at `spec.initialCheckpoint`, and the training has no checkpoint.
    """
    initial, own = resource.spec.initial_checkpoint, run_folder(resource).child(CHECKPOINTS_FOLDER)
    if initial is not None and CheckpointStore(own).latest() is None:
        initial_policy(initial, resource.spec.model)


def carry_out_recording(
    resource: OfflineRecording,
    references: References,
    reporter: Reporter,
    interruption: Interruption,
    placement: Placement = HERE,
) -> Outcome:
    """Record, and write the report."""
    checkpoint = _checkpoint_of(resource, references)
    run = RecordingRun(resource, reporter, interruption, checkpoint, placement)
    outcome = run.carry_out()
    return replace(outcome, report=write_recording_report(resource, outcome))


def carry_out_training(
    resource: OfflineTraining, references: References, reporter: Reporter, interruption: Interruption
) -> Outcome:
    """Train in this process, and write the report."""
    check_start(resource)
    asked = inputs_of(resource, references)
    finished = inputs_of_finished(resource, asked)
    inputs = finished or ready_inputs(resource, asked, reporter, interruption.check)
    outcome = TrainingRun(resource, inputs, reporter, interruption).carry_out()
    return replace(outcome, report=write_training_report(resource, outcome, [one.path for one in inputs]))


def _checkpoint_of(resource: OfflineRecording, references: References) -> str | None:
    reference = resource.spec.policy.training_ref
    if reference is None:
        return None
    try:
        return references.policy(reference.name)
    except DataError as error:
        raise DataError(f"{title(resource)}: spec.policy.trainingRef: {error}") from error
