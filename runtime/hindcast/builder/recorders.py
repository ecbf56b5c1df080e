"""Who plays and writes the ranges of an evaluation: this process, or several that stay from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hindcast.errors import UserError, caught, raised
from hindcast.evaluate.environment import EnvReport
from hindcast.formats.dataset_folder.commits import Commit
from hindcast.models.policy import Policy
from hindcast.record.fence import join_runners
from hindcast.record.recorder import Recorder, Task, Work
from hindcast.storage.location import resolve
from hindcast.worker_processes import WorkerProcesses

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
        """Close the environments."""
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
        """Stop the processes."""
        self._processes.close()


class _Runner:
    """In one of these processes: the recorder of the policy that it saw last."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._recorder: Recorder | None = None
        self._digest = ""

    def join(self) -> None:
        """Count among the recording's runners, as long as the process lives."""
        join_runners(resolve(self._task.folder))

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
