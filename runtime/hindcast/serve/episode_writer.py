"""`EpisodeWriter`: logs the episodes of an application without an environment into a growing dataset."""

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

JOURNAL_FOLDER: Final = "journal"
_TICK_SECONDS: Final = 1.0
"""Interval of flushes to an object store, and of checks whether a commit is due."""
_logger = logging.getLogger("hindcast")


class EpisodeWriter:
    """Logs the episodes of an application into a dataset, from any number of threads.

    An episode is named by its id: it is started, gets actions and their rewards, and is ended. On a local file system,
    everything that was logged when a method returns will be in the dataset exactly once, even if the process is killed
    at any moment; after `flush()`, also if the machine loses power. On an object store this holds for everything up to
    the last `flush()`, which runs by itself every second. Steps that are not in a data file yet are in a journal in the
    dataset's folder; the next writer of the same folder reads it and continues the same dataset. Episodes that were
    running when the writer was closed or killed are recorded as far as they were logged, as truncated episodes.

    Trainings read episodes that have ended and are committed. A commit happens when ended episodes have
    `file_bytes` in memory, every `commit_every_s` seconds, and in `close`.

    Args:
        path: the dataset's folder, a path or URI: new, or written by an `EpisodeWriter`.
        observation_space: space of the observations. Default: the space of the existing log. In a new log, floats get
            an unbounded space with the shape and dtype of the first observation; for integers the log has no space, so
            a training must state it.
        action_space: space of the actions, with the same default.
        normalized_actions: True if Box actions are in [-1, 1], as a module produces them and recordings contain them;
            False if they are in the application's units.
        allow_missing: whether observations may have missing values (NaN), as for a policy with `prepare.missing`.
        commit_every_s: maximum seconds until an ended episode is committed.
        file_bytes: size of the ended episodes in memory at which they are committed before `commit_every_s` has passed.

    Raises:
        OutputConflict: the folder contains something else, or another process writes to it.
        DataError: the log has other spaces, or the file that describes it is damaged.
        StorageError: the folder cannot be read or written.
    """

    def __init__(
        self,
        path: str | Path | Location,
        *,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        normalized_actions: bool = False,
        allow_missing: bool = False,
        commit_every_s: float = 60.0,
        file_bytes: int = 16 << 20,
    ) -> None:
        self._folder = resolve(path)
        self._commit_every_s, self._file_bytes = commit_every_s, file_bytes
        self._lock, self._commit_lock = threading.RLock(), threading.Lock()
        self._episodes = Episodes()
        # Ranges that are not committed yet: each range's journal, and the blocks of the episodes that ended in it.
        self._pending_ranges: list[tuple[Journal, list[Block]]] = []
        self._pid, self._is_closed = os.getpid(), False
        self._open_stack = contextlib.ExitStack()
        self._allow_missing = allow_missing
        requested_spec = DataSpec({}, observation_space, action_space, None, normalized_actions)
        # `_open_stack` holds the folder's lease; if opening fails, the inner stack releases the lease.
        with contextlib.ExitStack() as stack:
            self._open(requested_spec, stack)
            self._open_stack = stack.pop_all()
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run_timer, name="hindcast-log", daemon=True)
        self._thread.start()

    @property
    def is_local(self) -> bool:
        """True if the log is on a local file system."""
        return self._folder.is_local

    def start_episode(self, episode_id: str | None = None) -> str:
        """Start an episode.

        Args:
            episode_id: unique in the log; None generates an id.

        Returns:
            The id.

        Raises:
            DataError: an episode with this id is already running.
        """
        id_ = uuid.uuid4().hex if episode_id is None else episode_id
        if not isinstance(id_, str) or not id_:
            raise DataError(f"the episode id is {id_!r}, expected text")
        with self._lock_open_log():
            if id_ in self._episodes.running:
                raise DataError(f"episode {id_!r} is already running: end it, or use another id")
            self._apply(Record("start", id_))
        return id_

    def log_action(self, episode_id: str, observation: Any, action: Any, **outputs: Any) -> None:
        """Log a step: observation and action.

        Args:
            episode_id: a running episode.
            observation: the observation before the action, nested like its space.
            action: the action, nested like its space.
            outputs: additional columns, such as `action_logp`, the log-probability with which the action was chosen.
                All actions of a log have the same columns.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: values do not fit the spaces or the first step; nothing is logged.
        """
        with self._lock_open_log():
            where = self._describe_step(episode_id)
            if not self._schema.is_defined:
                self._set_schema(self._schema.define(observation, action, outputs, where))
            values = {
                **self._schema.cast_observation(observation, where),
                **self._schema.cast_action(action, outputs, where),
            }
            self._apply(Record("action", episode_id, values))

    def check_observation(self, episode_id: str, observation: Any) -> None:
        """Check an observation as `log_action` does, without logging it.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: the observation does not fit its space.
        """
        with self._lock_open_log():
            self._schema.cast_observation(observation, self._describe_step(episode_id))

    def log_returns(
        self, episode_id: str, reward: SupportsFloat, info: Mapping[str, Any] | None = None
    ) -> None:
        """Log the reward of the last action; rewards of several calls add up.

        Args:
            episode_id: a running episode.
            reward: a number.
            info: stored with the step, as JSON.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: the episode has no action yet, or the reward is not a finite number.
        """
        with self._lock_open_log():
            where = self._describe_step(episode_id)
            if not len(self._episodes[episode_id]):
                raise DataError(f"{where}: a reward was logged before the first action")
            self._apply(
                Record(
                    "returns", episode_id, reward=_parse_reward(reward, where), info=_encode_info(info, where)
                )
            )

    def end_episode(
        self, episode_id: str, observation: Any, *, terminated: bool = True, truncated: bool = False
    ) -> None:
        """End an episode. An episode without an action is not recorded.

        Args:
            episode_id: a running episode.
            observation: the last observation, after the last action.
            terminated: True if the episode reached a terminal state; ignored if `truncated` is True.
            truncated: True if the episode was cut off.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: the observation does not fit its space, or the end is neither terminated nor truncated.
        """
        if not (terminated or truncated):
            raise DataError(
                f"episode {episode_id!r} ends neither terminated nor truncated: set one of the two"
            )
        with self._lock_open_log():
            where = self._describe_step(episode_id)
            has_steps = bool(len(self._episodes[episode_id]))
            values = self._schema.cast_observation(observation, where) if has_steps else {}
            self._apply(
                Record("end", episode_id, values, terminated=not truncated, truncated=bool(truncated))
            )
            is_full = self._episodes.nbytes >= self._file_bytes
        if is_full:
            self._try_write(self.commit)

    def flush(self) -> None:
        """Make all logged steps durable.

        Raises:
            StorageError: the steps could not be written.
        """
        with self._lock_open_log():
            self._journal.flush()

    def commit(self) -> None:
        """Write the ended episodes to a file and commit it, so that trainings read them.

        Raises:
            StorageError: the file could not be written. The episodes are still in the journal, and the next call tries
                again.
        """
        with self._commit_lock:
            # Only the rotation blocks other threads; they can log while the files are written.
            with self._lock_open_log():
                self._rotate()
            self._commit_pending()

    def close(self) -> None:
        """End running episodes as truncated, write everything, and release the folder's lease."""
        if os.getpid() != self._pid:  # a fork: the log belongs to the parent process
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._stop_event.set()
        self._thread.join()
        try:
            self._commit_all()
        finally:
            self._journal.close()
            self._open_stack.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, requested_spec: DataSpec, stack: contextlib.ExitStack) -> None:
        state_folder = self._folder.child(FOLDER)
        stored_spec = _read_spec(self._folder)
        if stored_spec is None and has_foreign_files(self._folder, state_folder):
            raise OutputConflict(f"{self._folder} contains other files: use a new folder for the log.")
        guard = stack.enter_context(sole_writer(state_folder))
        self._folder = self._folder.with_guard(guard)
        self._journal_folder = self._folder.child(FOLDER, JOURNAL_FOLDER)
        spec = _agree_on_spec(requested_spec, stored_spec, self._folder)
        self._schema = StepSchema(spec, allow_missing=self._allow_missing)
        commits = read_commits(self._folder)
        remove_orphans(self._folder, commits.values())
        self._num_episodes = sum(commit.episodes for commit in commits.values())
        last_number = self._recover(commits)
        self._journal = Journal(self._journal_folder, last_number + 1)

    def _recover(self, commits: Mapping[int, Commit]) -> int:
        """Commit the episodes in the journals of killed writers. Return the last range's number; -1 without ranges."""
        journals = read_journals(self._journal_folder)
        last_number = max([-1, *commits, *journals])
        for number in sorted(journals):
            if number not in commits:
                episodes = Episodes()
                for record in journals[number]:
                    episodes.apply(record)
                # Only in the last journal: running episodes of an earlier journal were copied to the next one.
                if number == max(journals):
                    episodes.truncate_all()
                self._commit_range(number, episodes.pop_blocks())
        # Only after all commits: an interrupted recovery starts over and skips the committed ranges.
        for number in sorted(journals):
            delete_journal(self._journal_folder, number)
        return last_number

    @contextlib.contextmanager
    def _lock_open_log(self) -> Iterator[None]:
        """Hold the lock, after checking that this process may use the log.

        Raises:
            OutputConflict: the log is closed, or was opened before this process was forked.
        """
        if os.getpid() != self._pid:
            raise OutputConflict(
                f"the log {self._folder} was opened by the process {self._pid}, and this process is a fork of it: "
                "open it after the fork, in one process; `hindcast serve` lets several processes use one log."
            )
        with self._lock:
            if self._is_closed:
                raise OutputConflict(f"the log {self._folder} is closed: open another EpisodeWriter.")
            yield

    def _describe_step(self, episode_id: str) -> str:
        """Return the name of an episode's next step for errors.

        Raises:
            UnknownEpisode: the episode is not running.
        """
        return f"episode {episode_id!r}, step {len(self._episodes[episode_id])}"

    def _set_schema(self, schema: StepSchema) -> None:
        """Set the schema, and store it as the spec of the log, which owns the folder."""
        # A log has no resource to hash; its folder belongs to any EpisodeWriter.
        document = {"resource": LOG_RESOURCE, "specHash": LOG_RESOURCE, "spec": schema.spec.to_json()}
        write_owner(self._folder.child(FOLDER), document)
        self._schema = schema

    def _apply(self, record: Record) -> None:
        self._journal.append(record)
        self._episodes.apply(record)

    def _rotate(self) -> None:
        """Start a new journal with the running episodes, if episodes of the current one have ended."""
        if not self._episodes.blocks:
            return
        self._journal.flush()
        running_records = [
            record for episode in self._episodes.running.values() for record in episode.to_records()
        ]
        new_journal = Journal(self._journal_folder, self._journal.number + 1, running_records)
        self._pending_ranges.append((self._journal, self._episodes.pop_blocks()))
        self._journal = new_journal

    def _commit_pending(self) -> None:
        """Commit the pending ranges in order; a range stays pending until its journal is deleted."""
        while self._pending_ranges:
            journal, blocks = self._pending_ranges[0]
            self._commit_range(journal.number, blocks)
            journal.delete()
            del self._pending_ranges[0]

    def _commit_all(self) -> None:
        """End the running episodes as truncated and commit all episodes."""
        with self._commit_lock:
            self._journal.flush()
            self._episodes.truncate_all()
            self._pending_ranges.append((self._journal, self._episodes.pop_blocks()))
            self._commit_pending()

    def _commit_range(self, number: int, blocks: list[Block]) -> None:
        """Write the blocks, one for each episode, to a file and commit it under the range's number."""
        if not blocks:
            return
        target = Target(self._folder)
        write_commit(self._folder, target.write_range(self._schema.spec, number, self._num_episodes, blocks))
        self._num_episodes += len(blocks)

    def _run_timer(self) -> None:
        """Flush every second if storage requires it, and commit when it is due."""
        waited_s = 0.0
        while not self._stop_event.wait(tick_s := min(_TICK_SECONDS, self._commit_every_s)):
            waited_s += tick_s
            # A local journal passes each record to the kernel; on an object store, records wait for a flush.
            if not self._folder.is_local:
                self._try_write(self.flush)
            if waited_s >= self._commit_every_s:
                waited_s = 0.0
                self._try_write(self.commit)

    def _try_write(self, write: Callable[[], None]) -> None:
        """Call `write`; if it fails, log a warning: the data stay in the journal, and the next write includes them."""
        try:
            write()
        except UserError as error:
            if not self._is_closed:
                _logger.warning("%s", error)


def _read_spec(folder: Location) -> DataSpec | None:
    """Read the spec of the log in a folder; None if the folder contains no log.

    Raises:
        OutputConflict: the folder contains something else.
        DataError: the file that describes the log is damaged.
    """
    owner = require_owner(folder.child(FOLDER))
    if owner is None:
        return None
    if owner["resource"] != LOG_RESOURCE:
        raise OutputConflict(f"{folder} holds {owner['resource']}: use another folder for the log.")
    return DataSpec.from_json(owner["spec"])


def _agree_on_spec(requested_spec: DataSpec, stored_spec: DataSpec | None, folder: Location) -> DataSpec:
    """Return the spec of the existing log or, without one, the requested spec.

    Raises:
        DataError: the existing log has another spec than requested.
    """
    if stored_spec is None:
        return requested_spec
    for field in ("observation_space", "action_space"):
        requested_space, stored_space = getattr(requested_spec, field), getattr(stored_spec, field)
        if requested_space is not None and requested_space != stored_space:
            raise DataError(
                f"the log {folder} has the {field.replace('_', ' ')} {stored_space}, expected {requested_space}: "
                "use another folder"
            )
    if requested_spec.normalized_actions != stored_spec.normalized_actions and stored_spec.has_float_actions:
        raise DataError(
            f"the log {folder} has normalized_actions={stored_spec.normalized_actions}: "
            "set the same, or use another folder"
        )
    return stored_spec


def _parse_reward(reward: Any, where: str) -> float:
    try:
        number = float(reward)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: the reward is {reward!r}, expected a number") from error
    if not np.isfinite(number):
        raise DataError(f"{where}: the reward is {number}, which is not finite")
    return number


def _encode_info(info: Any, where: str) -> str:
    if info is None:
        return ""
    try:
        return info_to_json(dict(info))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: the info cannot be stored as JSON ({error})") from error
