"""Recording by `evaluate()`: every call adds complete episodes to one dataset, each of them exactly once.

A call records a fixed set of ranges (see `record.extent`), and episode i is seeded by (seed, i), as in any recording.
A script that is killed and run again therefore finds the ranges of its first calls, and plays only the missing ones.
"""

from __future__ import annotations

import math

import numpy as np

from hindcast.api import OfflineRecording
from hindcast.episodes.columns import Columns
from hindcast.evaluate.environment import EnvReport
from hindcast.formats.dataset_folder.commits import Commit
from hindcast.formats.dataset_folder.manifest import MANIFEST
from hindcast.models.policy import Policy
from hindcast.record.pool import LocalWorkers, RecordedRange, Runner, record_ranges
from hindcast.record.recorder import RangeToRecord
from hindcast.report.events import Reporter
from hindcast.rllib.builder.growing_dataset import GrowingDataset
from hindcast.run.placement import LOCAL
from hindcast.worker_processes import Workers

_EPISODES_PER_SLOT = 4
"""Episodes of a range per slot (an environment of a runner), so that slots with short episodes can play more."""


class EvaluationRecording(GrowingDataset):
    """A dataset that grows with every evaluation.

    Args:
        resource: the recording; its duration applies to each evaluation.
        reporter: receives the notes.
    """

    def __init__(self, resource: OfflineRecording, reporter: Reporter) -> None:
        super().__init__(resource, reporter)
        self._num_ranges = self._num_episodes = 0
        self._workers: Workers[Runner] | None = None

    def evaluate(self, policy: Policy) -> EnvReport:
        """Play and write the next episodes with the current policy.

        Raises:
            OutputConflict: the folder contains other files, or another policy's episodes.
            UserError: an episode could not be recorded; the episodes of its range are discarded.
        """
        workers = self._open_workers(policy)
        report = EnvReport()
        duration = self._spec.duration
        if duration.episodes is not None:
            self._record_ranges(workers, policy, self._take_next_ranges(duration.episodes), report)
            return report
        assert duration.timesteps is not None
        while (remaining := duration.timesteps - sum(report.lengths)) > 0:
            # At most as many episodes as are needed if all are as long as the longest so far. The ranges of a script
            # that runs again are the same, since the lengths are.
            num_episodes = remaining // max(report.lengths) if report.lengths else 1
            num_episodes = min(max(1, num_episodes), self._range_size)
            self._record_ranges(workers, policy, self._take_next_ranges(num_episodes), report)
        return report

    def close(self) -> None:
        """Complete the dataset; the next evaluation may add to it."""
        try:
            if self._workers is not None:
                self._workers.close()
        finally:
            super().close()
            self._workers = None

    @property
    def _range_size(self) -> int:
        """Number of episodes of a range.

        If the episodes of a file are limited, a range fills the fewest files that give every slot an episode; otherwise
        it has `_EPISODES_PER_SLOT` episodes per slot.
        """
        num_slots, episodes_per_file = self._spec.runners.envs_per_runner, self._spec.output.episodes_per_file
        if episodes_per_file is None:
            return _EPISODES_PER_SLOT * num_slots
        return episodes_per_file * math.ceil(num_slots / episodes_per_file)

    def _open_workers(self, policy: Policy) -> Workers[Runner]:
        """Return the runners; before the first evaluation, open the dataset and start them. Save a changed policy."""
        if self._workers is None:
            self._open(policy)
        self._save_changed_policy(policy)
        # The policy is saved first: runners in other processes load it.
        if self._workers is None:
            self._recorded_task = self._make_task(self._load_actor(self._module))
            num_runners, note = LOCAL.num_replicas(self._spec.runners.replicas, "evaluation runners")
            if note:
                self._reporter.note(self._name, note)
            self._workers = LOCAL.start_recorders(num_runners, self._recorded_task)
        return self._workers

    def _describe_conflict(self, policy: Policy) -> str | None:
        module = self._policy_folder.child(self.policy_folder_name)
        if module.exists() and Policy.load(module).digest == policy.digest:
            return None
        return "episodes of another policy"

    def _take_next_ranges(self, num_episodes: int) -> list[RangeToRecord]:
        """Advance by `num_episodes` episodes, and return them divided into ranges."""
        indices = range(self._num_episodes, self._num_episodes + num_episodes)
        ranges = [
            indices[start : start + self._range_size] for start in range(0, num_episodes, self._range_size)
        ]
        tasks = [
            RangeToRecord(range_number, episode_range)
            for range_number, episode_range in enumerate(ranges, self._num_ranges)
        ]
        self._num_ranges, self._num_episodes = self._num_ranges + len(tasks), indices.stop
        return tasks

    def _record_ranges(
        self, workers: Workers[Runner], policy: Policy, tasks: list[RangeToRecord], report: EnvReport
    ) -> None:
        """Record the ranges that are not committed yet, and add the episodes of all ranges to the report."""
        recorded_ranges: dict[int, RecordedRange] = {}
        missing_tasks = [task for task in tasks if task.number not in self._commits_made]
        if missing_tasks:
            # A manifest marks a dataset as complete, which it is not while episodes are added.
            self._folder.child(MANIFEST).delete()

        def next_task(in_progress: set[int]) -> RangeToRecord | None:
            return next(
                (task for task in missing_tasks if task.number not in in_progress | recorded_ranges.keys()),
                None,
            )

        policy.preprocessing.reset()
        # Runners in other processes get the policy as files; runners in this process use the object.
        runner_policy = policy if isinstance(workers, LocalWorkers) else policy.to_files()
        for recorded_range in record_ranges(workers, runner_policy, next_task):
            range_number = recorded_range.commit.range
            recorded_ranges[range_number] = recorded_range
            self._commits_made[range_number] = recorded_range.commit
        for task in tasks:
            result = recorded_ranges.get(task.number) or self._read_range(self._commits_made[task.number])
            report.returns.extend(result.returns)
            report.lengths.extend(result.lengths)

    def _read_range(self, commit: Commit) -> RecordedRange:
        """Read the returns and lengths of the episodes of a committed range."""
        task = self._recorded_task
        assert task is not None
        lengths = np.array([length for file in commit.files for length in file.episode_lengths])
        blocks = task.target.read_blocks(task.spec, commit.files, [Columns.REWARDS])
        rewards = np.concatenate([block.columns[Columns.REWARDS] for block in blocks])
        returns = np.add.reduceat(rewards, np.cumsum(lengths) - lengths)
        return RecordedRange(commit, returns.tolist(), lengths.tolist())
