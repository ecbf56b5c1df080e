"""Recording by `train()`: the episodes that a policy plays to learn from, each of them exactly once.

The rollout of an iteration depends only on the iteration's number and the weights, and an episode played between
updates only on its index and the weights: a training that resumes plays the same episodes again. The dataset therefore
records the position (iteration or episode index) up to which it has episodes, and skips earlier positions. All pending
episodes are written before a checkpoint. After a kill, the training plays again everything since the checkpoint; of
this, only what is not yet in the dataset is written.
"""

from __future__ import annotations

from dataclasses import replace

from hindcast.api import OfflineRecording, parse_bytes
from hindcast.formats.dataset_folder.manifest import MANIFEST
from hindcast.models.policy import Policy
from hindcast.record.recorder import RangeToRecord, write_range
from hindcast.record.runner import Episode, played_episodes_to_block
from hindcast.report.events import Reporter
from hindcast.rllib.builder.growing_dataset import GrowingDataset


class TrainingRecording(GrowingDataset):
    """A dataset that grows while its policy is trained.

    Args:
        resource: the recording; its policy samples actions, as in training.
        reporter: receives the notes.
        policy: the policy that is trained.
    """

    policy_folder_name = "learning"

    def __init__(self, resource: OfflineRecording, reporter: Reporter, policy: Policy) -> None:
        sampling = resource.spec.policy.model_copy(update={"explore": True})
        spec = resource.spec.model_copy(update={"policy": sampling})
        super().__init__(resource.model_copy(update={"spec": spec}), reporter)
        self._learning_policy = policy
        self._pending_episodes: list[Episode] = []
        self._positions = range(0)  # from the first to the last of the pending episodes
        self._pending_bytes = 0

    def on_episodes(self, position: int, episodes: list[Episode]) -> None:
        """Add new episodes. Episodes that the end of an iteration cuts are recorded as truncated: they do not continue.

        The episodes of a position that is already pending or committed are ignored.

        Args:
            position: number of the iteration, or index of the last of the episodes; it increases from call to call.
            episodes: the episodes played since the last call.

        Raises:
            OutputConflict: the folder contains other files.
            StorageError: the folder cannot be written.
        """
        if self._recorded_task is None:
            self._begin()
        if position <= (
            # A resumed training repeats positions that are already pending or committed. A commit's number is the last
            # position that it contains.
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
        """Write the pending episodes as one range, and commit it.

        Raises:
            StorageError: the episodes cannot be written; the dataset then contains none of them.
        """
        if not self._pending_episodes or self._recorded_task is None:
            return
        # A manifest marks a dataset as complete, which it is not while episodes are added.
        self._folder.child(MANIFEST).delete()
        # Positions take the place of episode indices; the last one is the range's number.
        task = RangeToRecord(self._positions[-1], self._positions)
        block = played_episodes_to_block(self._pending_episodes, self._recorded_task.prefix)
        commit = write_range(self._recorded_task, task, [block])
        self._commits_made[commit.range] = commit
        self._pending_episodes, self._pending_bytes = [], 0

    def close(self) -> None:
        """Write the remaining episodes, and complete the dataset."""
        try:
            self.flush()
            if self._recorded_task is not None:
                # The final weights, with which no episode was played.
                self._save_changed_policy(self._learning_policy)
        finally:
            super().close()

    def _begin(self) -> None:
        self._open(self._learning_policy)
        self._save_changed_policy(self._learning_policy)
        self._recorded_task = self._make_task(self._load_actor(self._module))

    def _is_full(self) -> bool:
        """Return True if the pending episodes fill at least one file."""
        output = self._spec.output
        max_episodes = output.episodes_per_file
        is_large = self._pending_bytes >= parse_bytes(output.max_file_size)
        return is_large or (max_episodes is not None and len(self._pending_episodes) >= max_episodes)

    def _describe_conflict(self, policy: Policy) -> str | None:  # noqa: ARG002
        was_recorded_in_training = self._policy_folder.child(self.policy_folder_name).exists()
        return (
            None
            if was_recorded_in_training
            else "episodes of a policy that was not trained while they were recorded"
        )
