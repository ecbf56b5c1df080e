"""Named moments of a training at which a process kills itself (SIGKILL): before or after a call of a function."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from typing import Any

MOMENTS = {
    "before an update": "before hindcast.learn.learner:Learner._compute_update",
    "between the losses of an update": "after hindcast.learn.learner:Learner._check_loss",
    "between gradients and step": "before hindcast.learn.optimisers:Optimiser.step",
    "between the steps of two optimisers": "after hindcast.learn.optimisers:Optimiser.step",
    "after an update": "after hindcast.learn.learner:Learner.update",
    "in mid-window": "after hindcast.pipeline.offline_data:OfflineData.next",
    "before targets are computed": "before hindcast.run.training.offline_trainer:window_targets",
    "after targets are computed": "after hindcast.run.training.offline_trainer:window_targets",
    "between an iteration and its checkpoint": "after hindcast.report.results:ResultsLog.append",
    "before a checkpoint": "before hindcast.learn.checkpoint:CheckpointStore.save",
    "before a checkpoint counts": "before hindcast.learn.checkpoint:dump",
    "before old checkpoints are removed": "before hindcast.learn.checkpoint:CheckpointStore._prune",
}


def arrange_kill_at_moment(moment: str, call: int) -> None:
    """Make this process kill itself at occurrence number `call` of a moment."""
    when, _, path = MOMENTS[moment].partition(" ")
    owner, name = _find_owner(path)
    function = getattr(owner, name)
    setattr(owner, name, _make_killing(function, when == "before", call))


def _find_owner(path: str) -> tuple[Any, str]:
    module, _, names = path.partition(":")
    *classes, name = names.split(".")
    owner: Any = importlib.import_module(module)
    for cls in classes:
        owner = getattr(owner, cls)
    return owner, name


def _make_killing(function: Callable[..., Any], is_before: bool, call: int) -> Callable[..., Any]:
    num_calls = 0

    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if is_before and num_calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **keywords)
        if num_calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapper
