"""The task of an attempt in its pool: what `hindcast run` does, on a cluster."""

from __future__ import annotations

import traceback
from dataclasses import replace

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Attempt, AttemptOutcome
from hindcast.api.status import OutputStatus
from hindcast.cluster.learners import train
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.outcome import FinishedRun, classify
from hindcast.cluster.pools import Pools
from hindcast.cluster.storage_monitor import read_checkpoint_status
from hindcast.datasets.units import bytes_in_memory
from hindcast.errors import DataError, UserError
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.formats.entries import count_episodes, row_group_columns
from hindcast.record.environments import close_unplayed_environments, keep_environments
from hindcast.report.writing import write_training_report
from hindcast.run.claim import CHECKPOINTS_FOLDER, run_folder
from hindcast.run.execute import check_early, execute_recording, prepare_inputs
from hindcast.run.inputs import data_by_name, make_sources
from hindcast.storage.location import resolve


class ResolvedReferences:
    """References that the operator has resolved to paths."""

    def __init__(self, attempt: Attempt) -> None:
        self._inputs = attempt.inputs

    def dataset(self, recording: str) -> str | None:
        """Return the path of the recording's dataset, or None if the attempt has no such input."""
        attempt_input = self._inputs.get(f"OfflineRecording/{recording}")
        return attempt_input.path if attempt_input else None

    def policy(self, training: str) -> str:
        """Return the path of the training's checkpoint."""
        attempt_input = self._inputs.get(f"OfflineTraining/{training}")
        if attempt_input is None:
            raise DataError(f"the attempt received no checkpoint of OfflineTraining/{training}")
        return attempt_input.path


def execute(
    resource: OfflineRecording | OfflineTraining, mailbox: Mailbox, pools: Pools
) -> FinishedRun | AttemptOutcome:
    """Execute the resource in a Ray task.

    Returns:
        The result, or the outcome of an error. The error is classified here, because only this process has its
        traceback.
    """
    try:
        with keep_environments():
            return _execute(resource, mailbox, pools)
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc()
        return classify(error)


def _execute(resource: OfflineRecording | OfflineTraining, mailbox: Mailbox, pools: Pools) -> FinishedRun:
    references = ResolvedReferences(pools.attempt)
    inputs = check_early(resource, references).inputs
    # The environments that are played in are on the pools' pods.
    close_unplayed_environments()
    if isinstance(resource, OfflineRecording):
        return _record(resource, references, mailbox, pools)
    with mailbox.reporter() as reporter, mailbox.interruption() as interruption:
        has_workers = resource.spec.pipeline.data_workers.interval[1] > 0
        options = pools.options("data" if has_workers else "learner", 1)
        inputs = prepare_inputs(resource, inputs, reporter, interruption, options)
    outcome = train(resource, make_sources(inputs), mailbox, pools)
    report = write_training_report(
        resource, outcome, data_by_name(inputs), [input_.reading for input_ in inputs]
    )
    # The driver's monitor may miss the final checkpoint, and resources that refer to this one read what is reported.
    checkpoint = read_checkpoint_status(run_folder(resource).child(CHECKPOINTS_FOLDER))
    return FinishedRun(replace(outcome, report=report), checkpoint=checkpoint)


def _record(
    resource: OfflineRecording, references: ResolvedReferences, mailbox: Mailbox, pools: Pools
) -> FinishedRun:
    """Record, and return the outcome with a description of the dataset."""
    pools_with_pulse = replace(pools, on_episode=mailbox.make_pulse())
    with mailbox.reporter() as reporter, mailbox.interruption() as interruption:
        outcome = execute_recording(resource, references, reporter, interruption, pools_with_pulse)
    manifest = read_manifest(resolve(resource.spec.output.path))
    assert manifest is not None
    row_groups = row_group_columns(manifest.files)
    output = OutputStatus(
        path=resource.spec.output.path,
        episodes=count_episodes(manifest.files),
        timesteps=sum(file.timesteps for file in manifest.files),
        bytes=sum(file.bytes for file in manifest.files),
        memory_bytes=int(bytes_in_memory(row_groups, [(manifest.data_spec, len(row_groups))]).sum()),
        digest=manifest.digest,
    )
    return FinishedRun(outcome, output)
