"""Restarts of a group that loses learners; without Ray, the group is one learner in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from hindcast.api import OfflineTraining
from hindcast.api.attempt import Attempt
from hindcast.cluster import learners
from hindcast.cluster.pools import Pools
from hindcast.errors import Interrupted, WorkerLost
from hindcast.learn.group import PeerLost
from hindcast.report.events import Outcome
from support import MemoryReporter, StopAfter, train, training

DEATH_ERROR = ray.exceptions.ActorDiedError()
POOLS = Pools(
    Attempt(revision=1, number=1, ray_job_name="test-t1-1", namespace="tests", uid="4f1c", spec_hash="-")
)


@pytest.fixture
def dying_groups(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`dying_groups(n)` makes each group die after n updates; it returns a list with `is_restart` of each group."""

    def die_after(updates: int, error: Exception = DEATH_ERROR) -> list[bool]:
        restart_flags: list[bool] = []

        def run_group(
            resource: OfflineTraining, sources: Any, mailbox: Any, pools: Pools, check: Any
        ) -> Outcome:
            restart_flags.append(pools.is_restart)
            with contextlib.suppress(Interrupted):
                return train(resource, StopAfter(updates))
            raise error

        monkeypatch.setattr(learners, "_run_group", run_group)
        return restart_flags

    return die_after


@pytest.fixture
def mailbox() -> Any:
    @contextlib.contextmanager
    def reporter() -> Iterator[MemoryReporter]:
        yield MemoryReporter()

    return SimpleNamespace(reporter=reporter)


def test_learners_that_make_progress_restart_without_limit(
    tmp_path: Path, walks: Path, dying_groups: Any, mailbox: Any
) -> None:
    restart_flags = dying_groups(2)
    outcome = learners.train(training(tmp_path, walks, stop={"updates": 15}), [], mailbox, POOLS)
    assert outcome.metrics["updates"] == 15
    assert restart_flags == [False] + 7 * [True]


@pytest.mark.parametrize("error", [DEATH_ERROR, PeerLost()])
def test_learners_without_new_checkpoint_are_abandoned(
    tmp_path: Path, walks: Path, dying_groups: Any, mailbox: Any, error: Exception
) -> None:
    resource = training(tmp_path, walks, stop={"updates": 15})
    with pytest.raises(Interrupted):
        train(resource, StopAfter(5))
    restart_flags = dying_groups(0, error)
    with pytest.raises(
        WorkerLost, match="learners died 4 times without a new checkpoint; the last error was"
    ):
        learners.train(resource, [], mailbox, POOLS)
    assert len(restart_flags) == 4


def test_bug_is_not_retried(tmp_path: Path, walks: Path, dying_groups: Any, mailbox: Any) -> None:
    restart_flags = dying_groups(0, ray.exceptions.RayTaskError("run", "Traceback …", KeyError("lost")))
    with pytest.raises(ray.exceptions.RayTaskError):
        learners.train(training(tmp_path, walks), [], mailbox, POOLS)
    assert len(restart_flags) == 1
