"""Who records the ranges: this process, or several. Either way a range is committed by who made it.

A recording is kept separate from the runners of an earlier one that was killed and may still write. A runner in a
separate process holds a shared lock on the folder of commits as long as it lives; a new recording waits until nobody
holds it. Otherwise a runner that outlived its driver by a moment could commit a file that the next driver has just
deleted as an orphan. Where the folder has a guard there are no locks: it refuses such a commit, also on machines and
file systems whose locks nobody else would see.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from typing import NamedTuple, TypeVar, TypeVarTuple

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.errors import OutputConflict, UserError, WorkerLost, catch_user_error, unwrap
from hindcast.formats.dataset_folder.commits import COMMITS, Commit
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.record.environments import make_environment
from hindcast.record.random_policy import RandomActor
from hindcast.record.recorder import OnEpisode, RangeToRecord, RecordingTask, make_runner, record_range
from hindcast.record.runner import Actor, EnvRunner, Episode, episode_id
from hindcast.storage.location import Location
from hindcast.worker_processes import Workers

RANDOM = "random"
_MOST_DEATHS = 5
"""Deaths per runner, without a range done in between."""
_LOOK_S = 1.0
_LONGEST_WAIT_S = 60.0
_LOOK_FOR_RUNNERS_S = 0.05

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
Value = TypeVar("Value")
NextRange = Callable[[set[int]], RangeToRecord | None]
"""Given the numbers of the ranges that are being made: another one, or None for now."""
PolicySource = str | Mapping[str, bytes] | Actor
"""A policy by its path (or `RANDOM`), by its files, or itself."""


class RecordedRange(NamedTuple):
    """A range that was made.

    Attributes:
        commit: its files.
        returns: of its episodes, in order.
        lengths: their steps.
        not_finite: id, and first such timestep, of each episode that has rewards that are NaN or infinite.
    """

    commit: Commit
    returns: list[float]
    lengths: list[int]
    non_finite_rewards: Sequence[tuple[str, int]] = ()


def load_actor(
    policy: str, environment: EnvironmentSpec, module_class: str | None = None
) -> Policy | RandomActor:
    """The policy at a path, or, for `RANDOM`, one that draws from the environment's action space.

    Args:
        own_class: path of the policy's class where it is the user's own.
    """
    if policy != RANDOM:
        return Policy.load(policy, allow_classes=[module_class] if module_class else ())
    made = make_environment(environment)
    made.close()
    return RandomActor(
        Preprocessing.from_specs(made.observation_space, made.action_space, ModelSpec(), environment)
    )


class Runner:
    """Records ranges in the process that it is in. It can be pickled before it records.

    Its environments stay open for as long as the policy is the same.

    Args:
        task: the recording.
        on_episode: called with each episode, in that process.
    """

    def __init__(self, task: RecordingTask, on_episode: OnEpisode | None = None) -> None:
        self._task = task
        self._on_episode = on_episode
        self._policy: PolicySource | None = None
        self._playing: EnvRunner | None = None
        self._lock: int | None = None

    def record(self, policy: PolicySource, work: RangeToRecord) -> RecordedRange | UserError:
        """A range by the policy, or the user's mistake."""
        return catch_user_error(lambda: self._record(policy, work))

    def close(self) -> None:
        """Close the environments."""
        if self._playing is not None:
            self._playing.close()
        if self._lock is not None:
            os.close(self._lock)
        self._policy = self._playing = self._lock = None

    def _record(self, policy: PolicySource, work: RangeToRecord) -> RecordedRange:
        if self._playing is None or policy != self._policy:
            self.close()
            self._lock = join_runners(self._task.target.folder)
            self._playing, self._policy = make_runner(self._task, self._actor(policy)), policy
        returns: list[float] = []
        lengths: list[int] = []
        not_finite: list[tuple[str, int]] = []

        def note(episode: Episode) -> None:
            if self._on_episode is not None:
                self._on_episode(episode)
            returns.append(episode.episode_return)
            lengths.append(episode.length)
            if (t := episode.first_non_finite) is not None:
                not_finite.append((episode_id(self._task.prefix, episode.index), t))

        commit = record_range(self._task, self._playing, work, note)
        return RecordedRange(commit, returns, lengths, not_finite)

    def _actor(self, policy: PolicySource) -> Actor:
        if isinstance(policy, str):
            return load_actor(policy, self._task.environment, self._task.module_class)
        return Policy.from_files(policy) if isinstance(policy, Mapping) else policy


class LocalWorkers:
    """A runner in this process, as `Workers`: what is submitted is done at once."""

    num_workers = 1

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def submit(
        self, function: Callable[[Runner, *Arguments], Result], *arguments: *Arguments
    ) -> Future[Result]:
        """See `Workers`."""
        future: Future[Result] = Future()
        future.set_result(function(self._runner, *arguments))
        return future

    def share(self, value: Value) -> Value:
        """See `Workers`."""
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
    """Record ranges until there are no more; they come as they are made, in any order.

    The range of a process that was killed is given out again.

    Args:
        policy: of `ThisProcess`, any; of others, its path or files.
        check: called at least every second, and after each range; what it raises ends the recording.

    Raises:
        UserError: the environment raised, or a file could not be written.
        WorkerLost: processes keep dying.
    """
    running: dict[Future[RecordedRange | UserError], RangeToRecord] = {}
    deaths = 0
    while True:
        given = {work.number for work in running.values()}
        while len(running) < workers.num_workers and (work := next_range(given)) is not None:
            running[workers.submit(Runner.record, policy, work)] = work
            given.add(work.number)
        if not running:
            return
        done, _ = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        check()
        for future in done:
            del running[future]
            try:
                recorded = unwrap(future.result())
            except BrokenExecutor as error:
                deaths += 1
                if deaths > _MOST_DEATHS * workers.num_workers:
                    raise WorkerLost(
                        f"{deaths} runners died before they finished a range of episodes, the last one with: {error}"
                    ) from error
                continue
            deaths = 0
            yield recorded


def join_runners(folder: Location) -> int | None:
    """Count this process among the runners of a dataset's folder, until it ends.

    Returns:
        The descriptor that holds the lock; None on file systems other than the local one, and under a guard.
    """
    descriptor = _open(folder)
    if descriptor is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def wait_for_runners(folder: Location) -> None:
    """Wait until no runner of an earlier recording is left; they end within moments of their driver.

    Raises:
        OutputConflict: some do not.
    """
    descriptor = _open(folder)
    if descriptor is None:
        return
    deadline = time.monotonic() + _LONGEST_WAIT_S
    try:
        while not _is_free(descriptor):
            if time.monotonic() > deadline:
                raise OutputConflict(
                    f"runners of an earlier run still write to {folder}: wait for them, or stop them."
                )
            time.sleep(_LOOK_FOR_RUNNERS_S)
    finally:
        os.close(descriptor)


def _open(folder: Location) -> int | None:
    if not folder.is_local or folder.guard is not None:
        return None
    commits = folder.child(COMMITS)
    commits.mkdirs()
    return os.open(commits.path, os.O_RDONLY)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
