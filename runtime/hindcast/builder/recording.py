"""Recording by `evaluate()`: every call adds complete episodes to one dataset, each of them exactly once.

A call is a fixed set of ranges (see `record.extent`), and episode i is seeded by (seed, i), as in any recording. So a
script that was killed and is run again finds the ranges of its first calls there, and plays only what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hindcast.api import OfflineRecording
from hindcast.builder.growing import GrowingDataset
from hindcast.episodes.columns import Columns
from hindcast.errors import UserError, caught, raised
from hindcast.evaluate.environment import EnvReport
from hindcast.formats.dataset_folder.commits import Commit
from hindcast.formats.dataset_folder.manifest import MANIFEST
from hindcast.models.policy import Policy
from hindcast.record.pool import join_runners
from hindcast.record.recorded import recorded_blocks
from hindcast.record.recorder import Recorder, Task, Work
from hindcast.report.events import Reporter
from hindcast.run.placement import HERE
from hindcast.worker_processes import WorkerProcesses

_WAVES = 4


class EvaluationRecording(GrowingDataset):
    """A dataset that grows with every evaluation.

    Args:
        resource: where to; its duration is what one evaluation adds.
    """

    def __init__(self, resource: OfflineRecording, reporter: Reporter) -> None:
        super().__init__(resource, reporter)
        self._next = Work(0, range(0))
        self._recorders: InProcess | InProcesses | None = None

    def evaluate(self, policy: Policy) -> EnvReport:
        """Play and write the next episodes with the policy as it is.

        Raises:
            OutputConflict: the folder holds something else, or what another policy played.
            UserError: nothing of an unfinished range counts.
        """
        recorders = self._ready(policy)
        report = EnvReport()
        duration = self._spec.duration
        if duration.episodes is not None:
            self._add(recorders.record(policy, self._missing(self._cut(duration.episodes))), report)
            return report
        assert duration.timesteps is not None
        while sum(report.lengths) < duration.timesteps:
            self._add(recorders.record(policy, self._missing(self._cut(self._range_size))), report)
        return report

    def close(self) -> None:
        """Complete the dataset, until the next evaluation adds to it."""
        try:
            if self._recorders is not None:
                self._recorders.close()
        finally:
            super().close()
            self._recorders = None

    @property
    def _range_size(self) -> int:
        """Episodes of a range: full files if their size is limited, and enough to keep all slots busy."""
        width, rows = self._spec.runners.envs_per_runner, self._spec.output.episodes_per_file
        return rows * math.ceil(width / rows) if rows is not None else _WAVES * width

    def _ready(self, policy: Policy) -> InProcess | InProcesses:
        if self._recorders is None:
            self._open(policy)
        self._note_policy(policy)
        if self._recorders is None:
            self._recorded_task = self._task(self._module)
            runners, note = HERE.replicas(self._spec.runners.replicas, "evaluation runners")
            if note:
                self._reporter.note(self._name, note)
            self._recorders = (
                InProcesses(self._recorded_task, runners) if runners > 1 else InProcess(self._recorded_task)
            )
        return self._recorders

    def _conflict(self, policy: Policy) -> str | None:
        module = self._policy_folder.child(self.module_name)
        if module.exists() and Policy.load(module).digest == policy.digest:
            return None
        return "episodes of another policy"

    def _cut(self, episodes: int) -> list[Work]:
        """The next episodes as ranges."""
        start = self._next.indices.stop
        ranges = [
            range(first, min(first + self._range_size, start + episodes))
            for first in range(start, start + episodes, self._range_size)
        ]
        works = [Work(self._next.number + offset, indices) for offset, indices in enumerate(ranges)]
        self._next = Work(works[-1].number + 1, works[-1].indices)
        return works

    def _missing(self, works: list[Work]) -> list[Work | Commit]:
        """What is committed already, and what is to be recorded."""
        found = [self._commits_made.get(work.number, work) for work in works]
        if any(isinstance(each, Work) for each in found):
            self._folder.child(MANIFEST).delete()
        return found

    def _add(self, made: Iterator[Made], report: EnvReport) -> None:
        for commit, played in made:
            self._commits_made[commit.range] = commit
            part = played or self._read(commit)
            report.returns.extend(part.returns)
            report.lengths.extend(part.lengths)

    def _read(self, commit: Commit) -> EnvReport:
        """Returns and lengths of a range that was there."""
        assert self._recorded_task is not None
        lengths = np.array([length for file in commit.files for length in file.episode_lengths])
        blocks = recorded_blocks(self._recorded_task, commit.files, [Columns.REWARDS])
        rewards = np.concatenate([block.columns[Columns.REWARDS] for block in blocks])
        returns = np.add.reduceat(rewards, np.cumsum(lengths) - lengths)
        return EnvReport(returns.tolist(), lengths.tolist())


Made = tuple[Commit, EnvReport | None]
"""A range, and how its episodes went where it was played just now."""


class InProcess:
    """Records in this process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._recorder: Recorder | None = None

    def record(self, policy: Policy, wanted: list[Work | Commit]) -> Iterator[Made]:
        """The commits, in order, with the report of those made here."""
        self._recorder = self._recorder or Recorder(self._task, policy)
        policy.preprocessing.reset()
        for each in wanted:
            yield (each, None) if isinstance(each, Commit) else _record(self._recorder, each)

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()


class InProcesses:
    """Records in processes that stay from one evaluation to the next."""

    def __init__(self, task: Task, count: int) -> None:
        self._processes = WorkerProcesses(count, _Runner(task), _Runner.join)

    def record(self, policy: Policy, wanted: list[Work | Commit]) -> Iterator[Made]:
        """As `InProcess.record`.

        Raises:
            UserError: the environment raised, or a file could not be written.
        """
        files, digest = policy.to_files(), policy.digest
        made = [
            each if isinstance(each, Commit) else self._processes.submit(_Runner.record, files, digest, each)
            for each in wanted
        ]
        for each in made:
            result = (each, None) if isinstance(each, Commit) else each.result()
            yield raised(result)

    def close(self) -> None:
        self._processes.close()


class _Runner:
    """In one of these processes: the recorder of the policy that it saw last."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._recorder: Recorder | None = None
        self._digest = ""

    def join(self) -> None:
        """Count among the recording's runners, as long as the process lives."""
        join_runners(self._task.folder)

    def record(self, files: dict[str, bytes], digest: str, work: Work) -> Made | UserError:
        """A range by the policy in `files`, or the user's mistake."""
        return caught(lambda: _record(self._recorder_of(files, digest), work))

    def _recorder_of(self, files: dict[str, bytes], digest: str) -> Recorder:
        if self._recorder is None or digest != self._digest:
            if self._recorder is not None:
                self._recorder.close()
            self._recorder, self._digest = Recorder(self._task, Policy.from_files(files)), digest
        return self._recorder


def _record(recorder: Recorder, work: Work) -> Made:
    report = EnvReport()

    def note(episode: Any) -> None:
        report.returns.append(episode.episode_return)
        report.lengths.append(episode.length)

    return recorder.record(work, note), report
