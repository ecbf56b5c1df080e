"""How often a group that loses learners starts again, without a Ray: the group is one learner in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from hindcast.cluster import learners
from hindcast.errors import Interrupted, WorkerLost
from hindcast.report.events import Outcome
from support import MemoryReporter, StopAfter, train, training

DIED = ray.exceptions.ActorDiedError()
MISSED = ray.exceptions.RayTaskError("run", "Traceback …", DIED)
"""Of a learner that found the first one gone before they had met."""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`dying(updates)`: every group dies after so many updates and a checkpoint; the groups that there were."""

    def after(updates: int, error: Exception = DIED) -> list[bool]:
        groups: list[bool] = []

        def in_a_group(work: learners.Assignment) -> Outcome:
            groups.append(work.is_restart)
            with contextlib.suppress(Interrupted):
                return train(work.resource, StopAfter(updates))
            raise error

        monkeypatch.setattr(learners, "_in_a_group", in_a_group)
        return groups

    return after


@pytest.fixture
def mailbox() -> Any:
    @contextlib.contextmanager
    def reporter() -> Iterator[MemoryReporter]:
        yield MemoryReporter()

    return SimpleNamespace(reporter=reporter)


def test_learners_that_get_on_may_die_as_often_as_they_like(
    tmp_path: Path, walks: Path, dying: Any, mailbox: Any
) -> None:
    groups = dying(2)
    outcome = learners.train(training(tmp_path, walks, stop={"updates": 15}), [], mailbox, None)  # type: ignore[arg-type]
    assert outcome.metrics["updates"] == 15
    assert groups == [False] + 7 * [True]


@pytest.mark.parametrize("error", [DIED, MISSED])
def test_learners_that_die_without_another_checkpoint_are_given_up(
    tmp_path: Path, walks: Path, dying: Any, mailbox: Any, error: Exception
) -> None:
    resource = training(tmp_path, walks, stop={"updates": 15})
    with pytest.raises(Interrupted):
        train(resource, StopAfter(5))
    groups = dying(0, error)
    with pytest.raises(
        WorkerLost, match="learners died 4 times without a new checkpoint; the last error was"
    ):
        learners.train(resource, [], mailbox, None)  # type: ignore[arg-type]
    assert len(groups) == 4


def test_a_defect_is_not_tried_again(tmp_path: Path, walks: Path, dying: Any, mailbox: Any) -> None:
    groups = dying(0, ray.exceptions.RayTaskError("run", "Traceback …", KeyError("lost")))
    with pytest.raises(ray.exceptions.RayTaskError):
        learners.train(training(tmp_path, walks), [], mailbox, None)  # type: ignore[arg-type]
    assert len(groups) == 1
