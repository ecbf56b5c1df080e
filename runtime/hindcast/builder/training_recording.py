"""Recording by `train()`: what a policy plays to learn from, each episode exactly once.

An iteration's rollout follows from its number and the weights, and so does every episode that is played beside updates:
a training that was killed plays the same ones again. So the dataset says up to which place it has them, and what is
heard of a place before is known already. What a killed script had heard and not written is heard again: before a
checkpoint is written, all that was heard is.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from hindcast.api import OfflineRecording, parse_bytes
from hindcast.builder.growing import GrowingDataset
from hindcast.formats.dataset_folder.manifest import MANIFEST
from hindcast.models.policy import Policy
from hindcast.record.recorder import Work, write_range
from hindcast.record.runner import Episode, episodes_to_block
from hindcast.report.events import Reporter


class TrainingRecording(GrowingDataset):
    """A dataset that grows while its policy is trained.

    Args:
        resource: where to; its policy samples, as it does to learn.
        reporter: gets notes of what was there.
        policy: learns.
    """

    module_name = "learning"

    def __init__(self, resource: OfflineRecording, reporter: Reporter, policy: Policy) -> None:
        sampling = resource.spec.policy.model_copy(update={"explore": True})
        spec = resource.spec.model_copy(update={"policy": sampling})
        super().__init__(resource.model_copy(update={"spec": spec}), reporter)
        self._policy_heard = policy
        self._writer_id = uuid.uuid4().hex[:8]
        self._waiting: list[Episode] = []
        self._places = range(0)
        self._size = 0

    def on_episodes(self, place: int, episodes: list[Episode]) -> None:
        """Keep what was played at a place, higher than those before.

        What an iteration cut is recorded as truncated: nobody went on with it.

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
        """Write what was heard.

        Raises:
            StorageError: it could not be written; nothing of it counts.
        """
        if not self._waiting or self._recorded_task is None:
            return
        self._folder.child(MANIFEST).delete()
        work = Work(self._places[-1], self._places)
        block = episodes_to_block(self._waiting, self._recorded_task.prefix)
        commit = write_range(self._recorded_task, work, [block], self._writer_id)
        self._commits_made[commit.range] = commit
        self._waiting, self._size = [], 0

    def close(self) -> None:
        """Write what was heard, and complete the dataset."""
        try:
            self.flush()
            if self._recorded_task is not None:
                self._note_policy(self._policy_heard)
        finally:
            super().close()

    def _begin(self) -> None:
        self._open(self._policy_heard)
        self._note_policy(self._policy_heard)
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
