"""Who plays and writes the ranges of an evaluation: this process, or several that stay from one to the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from hindcast.errors import UserError
from hindcast.evaluate.environment import EnvReport
from hindcast.models.policy import Policy
from hindcast.orphans import end_with_parent
from hindcast.record.fence import join_runners
from hindcast.record.recorder import Recorder, Task, Work
from hindcast.store.commits import Commit
from hindcast.store.filesystem import resolve

Made = tuple[Commit, EnvReport | None]
"""A range, and how its episodes went where it was played just now."""


class Here:
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


class Processes:
    """Records in processes that stay from one evaluation to the next."""

    def __init__(self, task: Task, count: int) -> None:
        import loky

        self._pool: Any = loky.ProcessPoolExecutor(
            max_workers=count, initializer=_hold, initargs=(task, os.getpid()), timeout=None
        )

    def record(self, policy: Policy, wanted: list[Work | Commit]) -> Iterator[Made]:
        """As `Here.record`.

        Raises:
            UserError: the environment raised, or a file could not be written.
        """
        files = policy.to_files()
        made = [
            each if isinstance(each, Commit) else self._pool.submit(_record_there, files, policy.digest, each)
            for each in wanted
        ]
        for each in made:
            result = (each, None) if isinstance(each, Commit) else each.result()
            if isinstance(result, UserError):
                raise result
            yield result

    def close(self) -> None:
        """Stop the processes."""
        self._pool.shutdown(wait=True, kill_workers=True)


_held: dict[str, Any] = {}
"""In a process of `Processes`: its task, and the recorder of the policy that it saw last."""


def _hold(task: Task, parent: int) -> None:
    end_with_parent(parent)
    _held["task"] = task
    _held["fence"] = join_runners(resolve(task.folder))


def _record_there(files: dict[str, bytes], digest: str, work: Work) -> Made | UserError:
    try:
        if _held.get("digest") != digest:
            if "recorder" in _held:
                _held["recorder"].close()
            _held["recorder"] = Recorder(_held["task"], Policy.from_files(files))
            _held["digest"] = digest
        return _record(_held["recorder"], work)
    except UserError as error:
        return error


def _record(recorder: Recorder, work: Work) -> Made:
    report = EnvReport()

    def note(episode: Any) -> None:
        report.returns.append(episode.episode_return)
        report.lengths.append(episode.length)

    return recorder.record(work, note), report
