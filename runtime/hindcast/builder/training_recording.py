"""Recording by `train()`: what a policy plays to learn from, each episode exactly once.

An iteration's rollout follows from its number and the weights, and so does every episode played alongside updates: a
killed training plays the same ones again. So the dataset records up to which place it has them, and skips earlier
places. Episodes that a killed script had received but not written are played again: all are written before a
checkpoint is.
"""

from __future__ import annotations

from dataclasses import replace

from hindcast.api import OfflineRecording, parse_bytes
from hindcast.builder.growing_dataset import GrowingDataset
from hindcast.formats.dataset_folder.manifest import MANIFEST
from hindcast.models.policy import Policy
from hindcast.record.recorder import RangeToRecord, write_range
from hindcast.record.runner import Episode, episodes_to_block
from hindcast.report.events import Reporter


class TrainingRecording(GrowingDataset):
    """A dataset that grows while its policy is trained.

    Args:
        resource: where to; its policy samples, as it does to learn.
    """

    module_name = "learning"

    def __init__(self, resource: OfflineRecording, reporter: Reporter, policy: Policy) -> None:
        sampling = resource.spec.policy.model_copy(update={"explore": True})
        spec = resource.spec.model_copy(update={"policy": sampling})
        super().__init__(resource.model_copy(update={"spec": spec}), reporter)
        self._learning_policy = policy
        self._waiting: list[Episode] = []
        self._places = range(0)
        self._size = 0

    def on_episodes(self, place: int, episodes: list[Episode]) -> None:
        """Keep the episodes played at a place, which is higher than earlier ones.

        Episodes cut by an iteration are recorded as truncated: they are not continued.

        Raises:
            OutputConflict: the folder holds something else.
            StorageError: it could not be written.
        """
        if self._recorded_task is None:
            self._begin()
        if place <= (self._places[-1] if self._waiting else max(self._commits_made, default=-1)):
            return
        self._places = range(self._places.start if self._waiting else place, place + 1)
        for episode in episodes:
            ended = episode.terminated or episode.truncated
            self._waiting.append(episode if ended else replace(episode, truncated=True))
            self._size += sum(column.nbytes for column in episode.columns.values())
        if self._is_full():
            self.flush()

    def flush(self) -> None:
        """Write the episodes received so far.

        Raises:
            StorageError: it could not be written; nothing of it counts.
        """
        if not self._waiting or self._recorded_task is None:
            return
        self._folder.child(MANIFEST).delete()
        work = RangeToRecord(self._places[-1], self._places)
        block = episodes_to_block(self._waiting, self._recorded_task.prefix)
        commit = write_range(self._recorded_task, work, [block])
        self._commits_made[commit.range] = commit
        self._waiting, self._size = [], 0

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
        self._recorded_task = self._task(self._module)

    def _is_full(self) -> bool:
        """Whether a file or more can be made of it."""
        output = self._spec.output
        rows = output.episodes_per_file
        is_large = self._size >= parse_bytes(output.max_file_size)
        return is_large or (rows is not None and len(self._waiting) >= rows)

    def _conflict(self, policy: Policy) -> str | None:  # noqa: ARG002
        is_ours = self._policy_folder.child(self.module_name).exists()
        return None if is_ours else "episodes of a policy that is no longer trained"
