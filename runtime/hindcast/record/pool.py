"""Runners that record and commit ranges, in this process or in several.

A recording must not overlap with runners of an earlier, killed recording that may still write. A runner therefore holds
a shared lock on the folder of commits while it lives, and a new recording waits until nobody holds it. Otherwise a
runner that outlives its driver by a moment could commit a file that the next driver has just deleted as an orphan. A
folder with a guard needs no locks: the guard refuses such a commit, also on machines and file systems without shared
locks.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from typing import NamedTuple

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.errors import OutputConflict, UserError, WorkerLost, catch_user_error, unwrap
from hindcast.formats.dataset_folder.commits import COMMITS_FOLDER, Commit
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.record.environments import environment_spaces, keep_environments
from hindcast.record.random_policy import RandomActor
from hindcast.record.recorder import OnEpisode, RangeToRecord, RecordingTask, make_runner, record_range
from hindcast.record.runner import Actor, EnvRunner, Episode, episode_id
from hindcast.storage.location import Location
from hindcast.worker_processes import Arguments, Result, Value, Workers

RANDOM = "random"
_MAX_DEATHS = 5
"""Maximum number of deaths per runner without a finished range in between."""
_CHECK_INTERVAL_SECONDS = 1.0
"""Maximum time between two checks whether the recording must stop."""
_MAX_WAIT_SECONDS = 60.0
"""Maximum time to wait for the runners of an earlier recording."""
_LOCK_POLL_SECONDS = 0.05

NextRange = Callable[[set[int]], RangeToRecord | None]
"""Returns the next range, given the numbers of the ranges in progress; None if none can start now."""
PolicySource = str | Mapping[str, bytes] | Actor
"""A policy: its path (or `RANDOM`), its files, or the policy itself."""


class RecordedRange(NamedTuple):
    """A range that was recorded and committed.

    Attributes:
        commit: the range's commit, which names its files.
        returns: returns of its episodes, in order.
        lengths: steps of its episodes, in order.
        non_finite: for each episode with a NaN or infinite number: (column, id of the episode, first timestep with such
            a number); the column is `rewards` or `obs`.
    """

    commit: Commit
    returns: list[float]
    lengths: list[int]
    non_finite: Sequence[tuple[str, str, int]] = ()


def load_actor(
    policy: str, environment: EnvironmentSpec, module_class: str | None = None
) -> Policy | RandomActor:
    """Load the policy at a path or, for `RANDOM`, create one that draws from the environment's action space.

    Args:
        policy: path, or `RANDOM`.
        environment: environment that the policy will act in.
        module_class: import path of the policy's class if it is a custom one.
    """
    if policy != RANDOM:
        return Policy.load(policy, allow_classes=[module_class] if module_class else ())
    spaces = environment_spaces(environment)
    return RandomActor(Preprocessing.from_specs(spaces.observation, spaces.action, ModelSpec(), environment))


class Runner:
    """Records ranges in its process. It can be pickled before its first range.

    Its environments stay open while the policy is the same.

    Args:
        task: the recording.
        on_episode: called in that process with each episode.
    """

    def __init__(self, task: RecordingTask, on_episode: OnEpisode | None = None) -> None:
        self._task = task
        self._on_episode = on_episode
        self._policy: PolicySource | None = None
        self._env_runner: EnvRunner | None = None
        self._lock: int | None = None

    def record(self, policy: PolicySource, work: RangeToRecord) -> RecordedRange | UserError:
        """Record a range with a policy; return the range or the user's error."""
        return catch_user_error(lambda: self._record(policy, work))

    def close(self) -> None:
        """Close the environments and release the lock; the next range opens new ones."""
        if self._env_runner is not None:
            self._env_runner.close()
        if self._lock is not None:
            os.close(self._lock)
        self._policy = self._env_runner = self._lock = None

    def _record(self, policy: PolicySource, work: RangeToRecord) -> RecordedRange:
        if self._env_runner is None or policy != self._policy:
            self.close()
            # Held until close(), so that a new recording waits for this runner.
            self._lock = register_runner(self._task.target.folder)
            # An environment that a random policy creates to read its spaces is then played in.
            with keep_environments():
                self._env_runner, self._policy = make_runner(self._task, self._load_actor(policy)), policy
        returns: list[float] = []
        lengths: list[int] = []
        non_finite: list[tuple[str, str, int]] = []

        def add_episode(episode: Episode) -> None:
            if self._on_episode is not None:
                self._on_episode(episode)
            returns.append(episode.episode_return)
            lengths.append(episode.length)
            eps_id = episode_id(self._task.prefix, episode.index)
            non_finite.extend((column, eps_id, t) for column, t in episode.find_non_finite().items())

        commit = record_range(self._task, self._env_runner, work, add_episode)
        return RecordedRange(commit, returns, lengths, non_finite)

    def _load_actor(self, policy: PolicySource) -> Actor:
        if isinstance(policy, str):
            return load_actor(policy, self._task.environment, self._task.module_class)
        return Policy.from_files(policy) if isinstance(policy, Mapping) else policy


class LocalWorkers:
    """A single runner in this process, with the interface of `Workers`: `submit` runs the function immediately."""

    num_workers = 1

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def submit(
        self, function: Callable[[Runner, *Arguments], Result], *arguments: *Arguments
    ) -> Future[Result]:
        """See `Workers.submit`."""
        future: Future[Result] = Future()
        future.set_result(function(self._runner, *arguments))
        return future

    def share(self, value: Value) -> Value:
        """See `Workers.share`."""
        return value

    def close(self) -> None:
        """Close the environments."""
        self._runner.close()


def record_ranges(
    workers: Workers[Runner],
    policy: PolicySource,
    next_range: NextRange,
    check: Callable[[], None] = lambda: None,
) -> Iterator[RecordedRange]:
    """Record ranges until there are no more; yield each range when it is finished, in any order.

    A range whose process was killed is recorded again.

    Args:
        workers: runners.
        policy: in any form for `LocalWorkers`; its path or files for other workers.
        next_range: returns the next range.
        check: called at least every second, and after each range; an exception from it ends the recording.

    Raises:
        UserError: the environment raised an exception, or a file could not be written.
        WorkerLost: processes keep dying.
    """
    running: dict[Future[RecordedRange | UserError], RangeToRecord] = {}
    num_deaths = 0
    while True:
        in_progress = {work.number for work in running.values()}
        while len(running) < workers.num_workers and (work := next_range(in_progress)) is not None:
            running[workers.submit(Runner.record, policy, work)] = work
            in_progress.add(work.number)
        if not running:
            return
        finished_futures, _ = wait(running, timeout=_CHECK_INTERVAL_SECONDS, return_when=FIRST_COMPLETED)
        check()
        for future in finished_futures:
            del running[future]
            try:
                recorded_range = unwrap(future.result())
            except BrokenExecutor as error:
                # The range is neither in progress nor committed, so `next_range` returns it again.
                num_deaths += 1
                if num_deaths > _MAX_DEATHS * workers.num_workers:
                    raise WorkerLost(
                        f"{num_deaths} runners died before they finished a range of episodes, the last one with: "
                        f"{error}"
                    ) from error
                continue
            num_deaths = 0  # only deaths without progress count
            yield recorded_range


def register_runner(folder: Location) -> int | None:
    """Register this process as a runner of a dataset's folder, until it ends; see `wait_for_runners`.

    Returns:
        File descriptor that holds the lock; None if the folder is not local or has a guard.
    """
    descriptor = _open_commits_folder(folder)
    if descriptor is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def wait_for_runners(folder: Location) -> None:
    """Wait until all runners of an earlier recording have ended, which they do soon after their driver.

    Raises:
        OutputConflict: a runner has not ended after a minute.
    """
    descriptor = _open_commits_folder(folder)
    if descriptor is None:
        return
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    try:
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise OutputConflict(
                    f"runners of an earlier run still write to {folder}: wait for them, or stop them."
                )
            time.sleep(_LOCK_POLL_SECONDS)
    finally:
        os.close(descriptor)


def _open_commits_folder(folder: Location) -> int | None:
    """Return a descriptor of the folder of commits, for locks; None if the folder is not local or has a guard."""
    if not folder.is_local or folder.guard is not None:
        return None
    commits = folder.child(COMMITS_FOLDER)
    commits.mkdirs()
    return os.open(commits.path, os.O_RDONLY)


def _try_lock(descriptor: int) -> bool:
    """Lock the folder exclusively, until the descriptor is closed; return False if a runner holds a lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
