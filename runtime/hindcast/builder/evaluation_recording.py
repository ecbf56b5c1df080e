"""Recording by `evaluate()`: every call adds complete episodes to one dataset, each of them exactly once.

A call is a fixed set of ranges (see `record.extent`), and episode i is seeded by (seed, i), as in any recording. So a
script that was killed and is run again finds the ranges of its first calls there, and plays only what is missing.
"""

from __future__ import annotations

import math

import numpy as np

from hindcast.api import OfflineRecording
from hindcast.builder.growing_dataset import GrowingDataset
from hindcast.episodes.columns import Columns
from hindcast.evaluate.environment import EnvReport
from hindcast.formats.dataset_folder.commits import Commit
from hindcast.formats.dataset_folder.manifest import MANIFEST
from hindcast.models.policy import Policy
from hindcast.record.pool import LocalWorkers, RecordedRange, Runner, record_ranges
from hindcast.record.recorder import RangeToRecord
from hindcast.report.events import Reporter
from hindcast.run.placement import LOCAL
from hindcast.worker_processes import Workers

_WAVES = 4


class EvaluationRecording(GrowingDataset):
    """A dataset that grows with every evaluation.

    Args:
        resource: where to; its duration is what one evaluation adds.
    """

    def __init__(self, resource: OfflineRecording, reporter: Reporter) -> None:
        super().__init__(resource, reporter)
        self._ranges = self._episodes = 0
        self._workers: Workers[Runner] | None = None

    def evaluate(self, policy: Policy) -> EnvReport:
        """Play and write the next episodes with the policy as it is.

        Raises:
            OutputConflict: the folder holds something else, or what another policy played.
            UserError: nothing of an unfinished range counts.
        """
        workers = self._ready(policy)
        report = EnvReport()
        duration = self._spec.duration
        if duration.episodes is not None:
            self._add(workers, policy, self._cut(duration.episodes), report)
            return report
        assert duration.timesteps is not None
        while sum(report.lengths) < duration.timesteps:
            self._add(workers, policy, self._cut(self._range_size), report)
        return report

    def close(self) -> None:
        """Complete the dataset, until the next evaluation adds to it."""
        try:
            if self._workers is not None:
                self._workers.close()
        finally:
            super().close()
            self._workers = None

    @property
    def _range_size(self) -> int:
        """Episodes of a range: full files if their size is limited, and enough to keep all slots busy."""
        width, rows = self._spec.runners.envs_per_runner, self._spec.output.episodes_per_file
        return rows * math.ceil(width / rows) if rows is not None else _WAVES * width

    def _ready(self, policy: Policy) -> Workers[Runner]:
        if self._workers is None:
            self._open(policy)
        self._note_policy(policy)
        if self._workers is None:
            self._recorded_task = self._task(self._module)
            runners, note = LOCAL.replicas(self._spec.runners.replicas, "evaluation runners")
            if note:
                self._reporter.note(self._name, note)
            self._workers = LOCAL.recorders(runners, self._recorded_task)
        return self._workers

    def _conflict(self, policy: Policy) -> str | None:
        module = self._policy_folder.child(self.module_name)
        if module.exists() and Policy.load(module).digest == policy.digest:
            return None
        return "episodes of another policy"

    def _cut(self, episodes: int) -> list[RangeToRecord]:
        """The next episodes as ranges."""
        ends = range(self._episodes, self._episodes + episodes)
        parts = [ends[first : first + self._range_size] for first in range(0, episodes, self._range_size)]
        works = [RangeToRecord(number, part) for number, part in enumerate(parts, self._ranges)]
        self._ranges, self._episodes = self._ranges + len(works), ends.stop
        return works

    def _add(
        self, workers: Workers[Runner], policy: Policy, works: list[RangeToRecord], report: EnvReport
    ) -> None:
        """Record what is not committed yet; how the episodes of all ranges went."""
        recorded: dict[int, RecordedRange] = {}
        missing = [work for work in works if work.number not in self._commits_made]
        if missing:
            self._folder.child(MANIFEST).delete()

        def next_work(given: set[int]) -> RangeToRecord | None:
            return next((work for work in missing if work.number not in given | recorded.keys()), None)

        policy.preprocessing.reset()
        given = policy if isinstance(workers, LocalWorkers) else policy.to_files()
        for made in record_ranges(workers, given, next_work):
            number = made.commit.range
            recorded[number], self._commits_made[number] = made, made.commit
        for work in works:
            part = recorded.get(work.number) or self._read(self._commits_made[work.number])
            report.returns.extend(part.returns)
            report.lengths.extend(part.lengths)

    def _read(self, commit: Commit) -> RecordedRange:
        """Returns and lengths of a range that was there."""
        task = self._recorded_task
        assert task is not None
        lengths = np.array([length for file in commit.files for length in file.episode_lengths])
        blocks = task.target.read_blocks(task.data, commit.files, [Columns.REWARDS])
        rewards = np.concatenate([block.columns[Columns.REWARDS] for block in blocks])
        returns = np.add.reduceat(rewards, np.cumsum(lengths) - lengths)
        return RecordedRange(commit, returns.tolist(), lengths.tolist())
