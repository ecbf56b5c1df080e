"""`EpisodeWriter`: the log of an application that has no environment, as a dataset that grows."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, SupportsFloat

import gymnasium as gym
import numpy as np

from hindcast.datasets.target import Target
from hindcast.episodes.block import Block
from hindcast.episodes.convert import info_to_json
from hindcast.errors import DataError, OutputConflict, UserError
from hindcast.formats.dataset_folder.commits import (
    Commit,
    read_commits,
    remove_orphans,
    write_commit,
)
from hindcast.formats.dataset_folder.folder_owner import LOG_RESOURCE, require_owner, write_owner
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.formats.spec import DataSpec
from hindcast.run.claim import has_foreign_files
from hindcast.serve.journal import Journal, delete_journal, read_journals
from hindcast.serve.records import Record
from hindcast.serve.running_episodes import Episodes
from hindcast.serve.step_schema import StepSchema
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Location, resolve

JOURNAL: Final = "journal"
_TICK_S: Final = 1.0
_logger = logging.getLogger("hindcast")


class EpisodeWriter:
    """Logs the episodes of an application into a dataset, from any number of threads.

    An episode is started, gets actions and their rewards, and is ended, by its id. On this machine whatever
    `start_episode`, `log_action`, `log_returns` or `end_episode` has returned from is in the dataset afterwards,
    exactly once, also if the process is killed at any moment (and after `flush()`, if the machine loses its power); on
    an object store, whatever was there at the last `flush()`, which comes by itself each second. What is in no data
    file yet lies in a journal in the dataset's folder: the next writer of the same folder finds it there, and goes on
    in the same dataset. Episodes that ran when the writer was closed or killed are recorded as far as they were
    logged, and truncated.

    Trainings read episodes that have ended and are committed: when they take `file_bytes`, every `commit_every_s`
    seconds, and at the end of a `with` block.

    Args:
        path: the dataset's folder, a path or URI; new, or one that an `EpisodeWriter` wrote.
        observation_space: of the observations. Default: as in the log already; else their shape and dtype are those of
            the first one, floats are unbounded, and how many integers there are is for a training to say.
        action_space: the same of the actions.
        normalized_actions: actions of a Box are a module's own, as recordings have them, rather than the application's.
        commit_every_s: seconds that an episode waits for its file at most.
        file_bytes: size in memory that a file is filled to, unless `commit_every_s` is over.

    Raises:
        OutputConflict: the folder holds something else, or another process writes there.
        DataError: the log has other spaces, or its mark is damaged.
        StorageError: it cannot be read or written.
    """

    def __init__(
        self,
        path: str | Path | Location,
        *,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        normalized_actions: bool = False,
        commit_every_s: float = 60.0,
        file_bytes: int = 16 << 20,
    ) -> None:
        self._folder = resolve(path)
        self._every_s, self._file_bytes = commit_every_s, file_bytes
        self._lock, self._committing = threading.RLock(), threading.Lock()
        self._episodes = Episodes()
        self._waiting: list[tuple[Journal, list[Block]]] = []
        self._process, self._is_closed = os.getpid(), False
        self._held = contextlib.ExitStack()
        given = DataSpec({}, observation_space, action_space, None, normalized_actions)
        with contextlib.ExitStack() as held:
            self._open(given, held)
            self._held = held.pop_all()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_time, name="hindcast-log", daemon=True)
        self._thread.start()

    def start_episode(self, episode_id: str | None = None) -> str:
        """Begin an episode.

        Args:
            episode_id: unique in the log; None makes one.

        Returns:
            The id.

        Raises:
            DataError: an episode of this id runs.
        """
        id_ = uuid.uuid4().hex if episode_id is None else episode_id
        if not isinstance(id_, str) or not id_:
            raise DataError(f"the episode id is {id_!r}, expected text")
        with self._logging():
            if id_ in self._episodes.running:
                raise DataError(f"episode {id_!r} is already running: end it, or use another id")
            self._apply(Record("start", id_))
        return id_

    def log_action(self, episode_id: str, observation: Any, action: Any, **outputs: Any) -> None:
        """Log a step: observation and action.

        Args:
            episode_id: a running episode.
            observation: before the action; nested like its space.
            action: nested like its space.
            outputs: columns besides, such as `action_logp`, the log-probability with which the action was chosen; the
                same with each action of the log.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: values that do not fit the spaces, or the first step; nothing is logged.
        """
        with self._logging():
            where = self._place(episode_id)
            if not self._steps.is_defined:
                self._define(self._steps.define(observation, action, outputs, where))
            values = {
                **self._steps.check_observation(observation, where),
                **self._steps.check_action(action, outputs, where),
            }
            self._apply(Record("action", episode_id, values))

    def check_observation(self, episode_id: str, observation: Any) -> None:
        """Refuse what `log_action` would refuse, without logging it.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: an observation that does not fit.
        """
        with self._logging():
            self._steps.check_observation(observation, self._place(episode_id))

    def log_returns(
        self, episode_id: str, reward: SupportsFloat, info: Mapping[str, Any] | None = None
    ) -> None:
        """Log the reward of the last action; rewards of several calls add up.

        Args:
            episode_id: a running episode.
            reward: a number.
            info: to be kept with the step, as JSON.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: it has no action yet; the reward is no finite number.
        """
        with self._logging():
            where = self._place(episode_id)
            if not len(self._episodes[episode_id]):
                raise DataError(f"{where}: a reward was logged before the first action")
            self._apply(Record("returns", episode_id, reward=_number(reward, where), info=_json(info, where)))

    def end_episode(
        self, episode_id: str, observation: Any, *, terminated: bool = True, truncated: bool = False
    ) -> None:
        """End an episode. One without an action leaves nothing.

        Args:
            episode_id: a running episode.
            observation: the last one, after the last action.
            terminated: it came to its end.
            truncated: it was cut off; it counts as terminated no more then.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: an observation that does not fit; neither terminated nor truncated.
        """
        if not (terminated or truncated):
            raise DataError(
                f"episode {episode_id!r} ends neither terminated nor truncated: give one of the two"
            )
        with self._logging():
            where = self._place(episode_id)
            has_steps = bool(len(self._episodes[episode_id]))
            values = self._steps.check_observation(observation, where) if has_steps else {}
            self._apply(
                Record("end", episode_id, values, terminated=not truncated, truncated=bool(truncated))
            )
            is_full = self._episodes.nbytes >= self._file_bytes
        if is_full:
            self._try(self.commit)

    def flush(self) -> None:
        """Make durable all that was logged.

        Raises:
            StorageError: it could not be written.
        """
        with self._logging():
            self._journal.flush()

    def commit(self) -> None:
        """Write the episodes that have ended to a file, so that trainings find them.

        Raises:
            StorageError: it could not be written; they are in the journal still, and the next call tries again.
        """
        with self._committing:
            with self._logging():
                self._rotate()
            self._write_waiting()

    def close(self) -> None:
        """End running episodes as truncated, write everything, and let others write to the folder."""
        if os.getpid() != self._process:  # the log is another's
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._ended.set()
        self._thread.join()
        try:
            self._write_all()
        finally:
            self._journal.close()
            self._held.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, given: DataSpec, held: contextlib.ExitStack) -> None:
        state = self._folder.child(FOLDER)
        known = _known(self._folder)
        if known is None and has_foreign_files(self._folder, state):
            raise OutputConflict(f"{self._folder} contains other files: give a new folder for the log.")
        guard = held.enter_context(sole_writer(state))
        self._folder = self._folder.with_guard(guard)
        self._journals = self._folder.child(FOLDER, JOURNAL)
        self._steps = StepSchema(_agreed(given, known, self._folder))
        commits = read_commits(self._folder)
        remove_orphans(self._folder, commits.values())
        self._num_episodes = sum(commit.episodes for commit in commits.values())
        last = self._recover(commits)
        self._journal = Journal(self._journals, last + 1)

    def _recover(self, commits: Mapping[int, Commit]) -> int:
        """Commit what the journals of killed writers hold; the number of the last range."""
        left = read_journals(self._journals)
        last = max([-1, *commits, *left])
        for number in sorted(left):
            if number not in commits:
                episodes = Episodes()
                for record in left[number]:
                    episodes.apply(record)
                if number == max(left):  # others were carried over to the journal after theirs
                    episodes.truncate_all()
                self._write_range(number, episodes.pop_blocks())
        for number in sorted(left):
            delete_journal(self._journals, number)
        return last

    @contextlib.contextmanager
    def _logging(self) -> Iterator[None]:
        if os.getpid() != self._process:
            raise OutputConflict(
                f"the log {self._folder} was opened by the process {self._process}, and this process is a fork of it: "
                "open it after the fork, in one process; `hindcast serve` lets several processes use one log."
            )
        with self._lock:
            if self._is_closed:
                raise OutputConflict(f"the log {self._folder} is closed: open another EpisodeWriter.")
            yield

    def _place(self, episode_id: str) -> str:
        return f"episode {episode_id!r}, step {len(self._episodes[episode_id])}"

    def _define(self, steps: StepSchema) -> None:
        document = {"resource": LOG_RESOURCE, "specHash": LOG_RESOURCE, "spec": steps.spec.to_json()}
        write_owner(self._folder.child(FOLDER), document)
        self._steps = steps

    def _apply(self, record: Record) -> None:
        self._journal.append(record)
        self._episodes.apply(record)

    def _rotate(self) -> None:
        """Let another journal begin, with what runs, where episodes have ended in this one."""
        if not self._episodes.blocks:
            return
        self._journal.flush()
        running = [record for episode in self._episodes.running.values() for record in episode.records()]
        fresh = Journal(self._journals, self._journal.number + 1, running)
        self._waiting.append((self._journal, self._episodes.pop_blocks()))
        self._journal = fresh

    def _write_waiting(self) -> None:
        while self._waiting:
            journal, blocks = self._waiting[0]
            self._write_range(journal.number, blocks)
            journal.delete()
            del self._waiting[0]

    def _write_all(self) -> None:
        with self._committing:
            self._journal.flush()
            self._episodes.truncate_all()
            self._waiting.append((self._journal, self._episodes.pop_blocks()))
            self._write_waiting()

    def _write_range(self, number: int, blocks: list[Block]) -> None:
        if not blocks:
            return
        target = Target(self._folder)
        write_commit(self._folder, target.write_range(self._steps.spec, number, self._num_episodes, blocks))
        self._num_episodes += len(blocks)

    def _keep_time(self) -> None:
        """Flush each second where storage needs that, and commit when it is time."""
        waited = 0.0
        while not self._ended.wait(step := min(_TICK_S, self._every_s)):
            waited += step
            if not self._folder.is_local:
                self._try(self.flush)
            if waited >= self._every_s:
                waited = 0.0
                self._try(self.commit)

    def _try(self, write: Callable[[], None]) -> None:
        """Write what is in the journal; where that fails it stays there, and is tried again."""
        try:
            write()
        except UserError as error:
            if not self._is_closed:
                _logger.warning("%s", error)


def _known(folder: Location) -> DataSpec | None:
    """What the log in a folder holds; None where none was begun.

    Raises:
        OutputConflict: the mark there is of something else.
        DataError: it is damaged.
    """
    found = require_owner(folder.child(FOLDER))
    if found is None:
        return None
    if found["resource"] != LOG_RESOURCE:
        raise OutputConflict(f"{folder} holds {found['resource']}: give another folder for the log.")
    return DataSpec.from_json(found["spec"])


def _agreed(given: DataSpec, known: DataSpec | None, folder: Location) -> DataSpec:
    """What the log holds, where a log was there.

    Raises:
        DataError: it is not what was given.
    """
    if known is None:
        return given
    for what in ("observation_space", "action_space"):
        wanted, found = getattr(given, what), getattr(known, what)
        if wanted is not None and wanted != found:
            raise DataError(
                f"the log {folder} has the {what.replace('_', ' ')} {found}, and {wanted} is given: give another folder"
            )
    if given.normalized_actions != known.normalized_actions and known.has_float_actions:
        raise DataError(
            f"the log {folder} has normalized_actions={known.normalized_actions}: give the same, or another folder"
        )
    return known


def _number(reward: Any, where: str) -> float:
    try:
        number = float(reward)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: the reward is {reward!r}, expected a number") from error
    if not np.isfinite(number):
        raise DataError(f"{where}: the reward is {number}, which is not finite")
    return number


def _json(info: Any, where: str) -> str:
    if info is None:
        return ""
    try:
        return info_to_json(dict(info))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: the info cannot be stored as JSON ({error})") from error
