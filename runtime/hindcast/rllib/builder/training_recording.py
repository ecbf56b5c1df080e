"""Recording by `train()`: the episodes that a policy plays to learn from, each of them exactly once.

An iteration's rollout is a function of its number and the weights, and so is every episode played between updates: a
killed training plays the same ones again. The dataset therefore records the position up to which it has episodes, and
skips earlier positions. All episodes are written before a checkpoint, so those that a killed script had not written are
played again.
"""

from __future__ import annotations

from dataclasses import replace

from hindcast.api import OfflineRecording, parse_bytes
from hindcast.formats.dataset_folder.manifest import MANIFEST
from hindcast.models.policy import Policy
from hindcast.record.recorder import RangeToRecord, write_range
from hindcast.record.runner import Episode, episodes_to_block
from hindcast.report.events import Reporter
from hindcast.rllib.builder.growing_dataset import GrowingDataset


class TrainingRecording(GrowingDataset):
    """A dataset that grows while its policy is trained.

    Args:
        resource: the recording; its policy samples actions, as in training.
    """

    module_name = "learning"

    def __init__(self, resource: OfflineRecording, reporter: Reporter, policy: Policy) -> None:
        sampling = resource.spec.policy.model_copy(update={"explore": True})
        spec = resource.spec.model_copy(update={"policy": sampling})
        super().__init__(resource.model_copy(update={"spec": spec}), reporter)
        self._learning_policy = policy
        self._pending_episodes: list[Episode] = []
        self._positions = range(0)
        self._pending_bytes = 0

    def on_episodes(self, position: int, episodes: list[Episode]) -> None:
        """Add the episodes played at a position, which is higher than earlier ones.

        Episodes that the end of an iteration cuts are recorded as truncated, since they are not continued.

        Raises:
            OutputConflict: the folder contains other files.
            StorageError: it cannot be written.
        """
        if self._recorded_task is None:
            self._begin()
        if position <= (
            # Positions that a resumed training plays again are pending or committed already.
            self._positions[-1] if self._pending_episodes else max(self._commits_made, default=-1)
        ):
            return
        self._positions = range(self._positions.start if self._pending_episodes else position, position + 1)
        for episode in episodes:
            is_complete = episode.terminated or episode.truncated
            self._pending_episodes.append(episode if is_complete else replace(episode, truncated=True))
            self._pending_bytes += sum(column.nbytes for column in episode.columns.values())
        if self._is_full():
            self.flush()

    def flush(self) -> None:
        """Write the episodes received so far.

        Raises:
            StorageError: they cannot be written; none of them counts.
        """
        if not self._pending_episodes or self._recorded_task is None:
            return
        # The manifest says that a dataset is complete.
        self._folder.child(MANIFEST).delete()
        task = RangeToRecord(self._positions[-1], self._positions)
        block = episodes_to_block(self._pending_episodes, self._recorded_task.prefix)
        commit = write_range(self._recorded_task, task, [block])
        self._commits_made[commit.range] = commit
        self._pending_episodes, self._pending_bytes = [], 0

    def close(self) -> None:
        """Write the remaining episodes, and complete the dataset."""
        try:
            self.flush()
            if self._recorded_task is not None:
                self._note_policy(self._learning_policy)
        finally:
            super().close()

    def _begin(self) -> None:
        self._open(self._learning_policy)
        self._note_policy(self._learning_policy)
        self._recorded_task = self._make_task(self._module)

    def _is_full(self) -> bool:
        """Return True if the pending episodes fill at least one file."""
        output = self._spec.output
        max_episodes = output.episodes_per_file
        is_large = self._pending_bytes >= parse_bytes(output.max_file_size)
        return is_large or (max_episodes is not None and len(self._pending_episodes) >= max_episodes)

    def _conflict(self, policy: Policy) -> str | None:  # noqa: ARG002
        is_ours = self._policy_folder.child(self.module_name).exists()
        return None if is_ours else "episodes of a policy that is no longer trained"
