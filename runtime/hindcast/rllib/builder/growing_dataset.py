"""`GrowingDataset`, a dataset that grows while a script runs, and is complete after `close`."""

from __future__ import annotations

import contextlib

from hindcast.api import OfflineRecording
from hindcast.errors import OutputConflict
from hindcast.formats.dataset_folder.commits import (
    Commit,
    read_commits,
    remove_orphans,
)
from hindcast.formats.dataset_folder.manifest import read_manifest, write_manifest
from hindcast.models.policy import Policy
from hindcast.record.pool import wait_for_runners
from hindcast.record.recorder import RecordingTask
from hindcast.report.events import Reporter
from hindcast.run.claim import claim
from hindcast.run.interruption import Interruption
from hindcast.run.recording.recording_run import RecordingRun


class GrowingDataset(RecordingRun):
    """A dataset to which a script adds ranges of episodes; a later script may continue it.

    Args:
        resource: the recording.
        reporter: receives the notes.
    """

    policy_folder_name = "module"
    """Name of the folder, in the policy folder of the dataset, of the policy that is stored with the data."""

    def __init__(self, resource: OfflineRecording, reporter: Reporter) -> None:
        super().__init__(resource, reporter, Interruption())
        self._exit_stack = contextlib.ExitStack()
        self._commits_made: dict[int, Commit] = {}  # by number of the range, with those of earlier scripts
        self._policy_digests: list[str] = []
        self._recorded_task: RecordingTask | None = None

    def close(self) -> None:
        """Write the manifest, which completes the dataset until episodes are added."""
        try:
            if self._recorded_task is not None and self._commits_made:
                manifest = self._make_manifest(
                    self._recorded_task, self._load_actor(self._module), self._commits_made
                )
                # The policy changed between calls, so one digest does not describe all episodes.
                if len(self._policy_digests) > 1:
                    manifest = manifest.model_copy(
                        update={"policy": {**manifest.policy, "digests": self._policy_digests}}
                    )
                write_manifest(self._folder, manifest)
        finally:
            self._exit_stack.close()
            self._recorded_task = None

    @property
    def _module(self) -> str:
        return str(self._policy_folder.child(self.policy_folder_name))

    def _open(self, policy: Policy) -> None:
        """Lock the output, and read its commits, or clear them if this dataset cannot continue them.

        Raises:
            OutputConflict: the output contains other data, or episodes that this dataset neither can continue nor may
                replace.
        """
        self._check_output()
        self._exit_stack.enter_context(self._sole_writer())
        # Runners of a killed script may still be writing.
        wait_for_runners(self._folder)
        if read_commits(self._folder) and (problem := self._describe_conflict(policy)):
            if self._spec.output.on_existing != "Replace":
                raise OutputConflict(
                    f'{self._folder} contains {problem}: choose another output, or set output_on_existing="Replace".'
                )
            self._clear()
        self._commits_made = read_commits(self._folder)
        claim(self._state, self._resource, bool(self._commits_made))
        remove_orphans(self._folder, self._commits_made.values())
        if read_manifest(self._folder) is not None:
            self._refuse_finished()
        if self._commits_made:
            self._reporter.note(self._name, f"resuming an earlier run in {self._folder}")

    def _describe_conflict(self, policy: Policy) -> str | None:
        """Describe the existing episodes if this dataset cannot continue them; return None if it can."""
        raise NotImplementedError

    def _save_changed_policy(self, policy: Policy) -> None:
        """Save the policy, unless it has the same weights as in the last call.

        Called before the first episodes with these weights are written, so that episodes have their policy even if the
        script is killed.
        """
        digest = policy.digest
        if digest not in self._policy_digests[-1:]:
            policy.save(self._module)
            self._policy_digests.append(digest)
