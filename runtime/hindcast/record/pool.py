"""Who records the ranges: this process, or N Ray actors. Either way a range is committed by who made it.

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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.errors import OutputConflict, UserError, WorkerLost, caught, raised
from hindcast.formats.dataset_folder.commits import COMMITS, Commit
from hindcast.models.connectors import Preprocessing
from hindcast.models.policy import Policy
from hindcast.ray_session import connected
from hindcast.record.environments import make_environment
from hindcast.record.random_policy import RandomPolicy
from hindcast.record.recorder import OnEpisode, Recorder, Task, Work
from hindcast.storage.location import Location
from hindcast.worker_processes import end_with_parent

RANDOM = "random"
_MOST_DEATHS = 5
"""Deaths per runner, without a range done in between."""
_LOOK_S = 1.0
_LONGEST_WAIT_S = 60.0
_LOOK_FOR_RUNNERS_S = 0.05

NextWork = Callable[[set[int]], Work | None]
"""Given the numbers of the ranges that are being made: another one, or None for now."""


def load_actor(
    policy: str, environment: EnvironmentSpec, own_class: str | None = None
) -> Policy | RandomPolicy:
    """The policy at a path, or, for `RANDOM`, one that draws from the environment's action space.

    Args:
        own_class: path of the policy's class where it is the user's own.
    """
    if policy != RANDOM:
        return Policy.load(policy, allow_classes=[own_class] if own_class else ())
    made = make_environment(environment)
    made.close()
    return RandomPolicy(Preprocessing.of(made.observation_space, made.action_space, ModelSpec(), environment))


def record_here(task: Task, policy: str, next_work: NextWork, on_episode: OnEpisode) -> Iterator[Commit]:
    """Record ranges in this process, one after the other."""
    recorder = Recorder(task, load_actor(policy, task.environment, task.own_class))
    try:
        while (work := next_work(set())) is not None:
            yield recorder.record(work, on_episode)
    finally:
        recorder.close()


def record_on_ray(
    task: Task,
    policy: str,
    next_work: NextWork,
    *,
    runners: int,
    check: Callable[[], None],
    options: Mapping[str, Any] | None = None,
    on_episode: OnEpisode | None = None,
) -> Iterator[Commit]:
    """Record ranges with Ray actors; commits come as they are made, in any order.

    An actor that dies is replaced, and its range given out again.

    Args:
        policy: path of the policy, or `RANDOM`.
        check: called at least every second; what it raises ends the recording.
        options: Ray's for an actor: where it lands, with how many CPUs. Default: one CPU, anywhere.
        on_episode: called with each episode, in the actor's process; picklable.

    Raises:
        WorkerLost: actors keep dying.
    """
    import ray

    with connected(num_cpus=runners):
        actor_class = ray.remote(_RemoteRecorder).options(**(options or {"num_cpus": 1}))
        idle: list[Any] = [actor_class.remote(task, policy, on_episode) for _ in range(runners)]
        running: dict[Any, tuple[Any, Work]] = {}
        deaths = 0
        try:
            while True:
                given = {work.number for _, work in running.values()}
                while idle and (work := next_work(given)) is not None:
                    recorder = idle.pop()
                    running[recorder.record.remote(work)] = (recorder, work)
                    given.add(work.number)
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
                check()
                for reference in done:
                    recorder, work = running.pop(reference)
                    try:
                        result = ray.get(reference)
                    except ray.exceptions.RayActorError as error:
                        deaths += 1
                        if deaths > _MOST_DEATHS * runners:
                            raise WorkerLost(
                                f"{deaths} runners died before they finished a range of episodes, the last one with: "
                                f"{error}"
                            ) from error
                        idle.append(actor_class.remote(task, policy, on_episode))
                        continue
                    commit: Commit = raised(result)
                    deaths = 0
                    idle.append(recorder)
                    yield commit
        finally:
            for recorder in [*idle, *(pair[0] for pair in running.values())]:
                ray.kill(recorder)


class _RemoteRecorder:
    """A `Recorder` in a Ray actor."""

    def __init__(self, task: Task, policy: str, on_episode: OnEpisode | None) -> None:
        end_with_parent(os.getppid())  # Ray itself sees that its node is gone only where init takes over
        self._task = task
        self._policy = policy
        self._on_episode = on_episode
        self._recorder: Recorder | None = None
        self._lock: int | None = None

    def record(self, work: Work) -> Commit | UserError:
        return caught(lambda: self._record(work))

    def _record(self, work: Work) -> Commit:
        if self._recorder is None:
            self._lock = join_runners(self._task.folder)
            actor = load_actor(self._policy, self._task.environment, self._task.own_class)
            self._recorder = Recorder(self._task, actor)
        return self._recorder.record(work, self._on_episode)


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
