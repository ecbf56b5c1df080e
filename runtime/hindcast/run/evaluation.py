"""Plays with the policy of a checkpoint in the environment it was trained for, or in another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hindcast.api import EnvironmentSpec
from hindcast.errors import DataError, SpecError
from hindcast.evaluate.environment import EnvReport, evaluate_policy
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.models.policy import Policy
from hindcast.storage.location import Location, missing, resolve

_MODULES_IN = ("", "_hindcast/policy/module")
_CHECKPOINTS_IN = ("", "checkpoints", "_hindcast/policy/checkpoints")
_MARKS = ("spec.json", "_hindcast/spec.json")
_LEVELS = 6


@dataclass(frozen=True)
class Evaluation:
    """What was played, and how it went."""

    policy: str
    environment: EnvironmentSpec
    report: EnvReport


def evaluate_checkpoint(
    path: str | Path,
    *,
    environment: str | None = None,
    module_class: str | None = None,
    episodes: int = 10,
    seed: int = 0,
    explore: bool = False,
) -> Evaluation:
    """Evaluate a checkpoint.

    Args:
        path: a checkpoint, its `module`, a folder of checkpoints (its best, else its latest), a run folder,
            or a dataset (the policy that was recorded).
        environment: Gymnasium id or "package.module:EnvClass"; None takes the one of the run that the
            checkpoint lies in.
        module_class: the policy's `model.moduleClass`, where it has one.
        episodes: whole episodes to play.
        seed: of resets and exploration.
        explore: sample actions; False takes the policy's mode.

    Raises:
        DataError: no checkpoint there.
        SpecError: no environment given and none found.
    """
    location = resolve(path)
    if not location.exists():
        raise missing(location)
    module = _module(location)
    where = EnvironmentSpec(id=environment) if environment is not None else _environment_of(location)
    policy = Policy.load(str(module), allow_classes=[module_class] if module_class else ())
    report = evaluate_policy(policy, where, duration=episodes, seed=seed, explore=explore)
    return Evaluation(str(module), where, report)


def _module(location: Location) -> Location:
    for below in _MODULES_IN:
        if location.child(below, "module.json").exists():
            return location.child(below)
    for below in _CHECKPOINTS_IN:
        folder = location.child(below) if below else location
        try:
            return find_checkpoint(folder).location
        except DataError:
            if folder.child("checkpoint.json").exists():
                raise
    return find_checkpoint(location).location


def _environment_of(location: Location) -> EnvironmentSpec:
    """The environment of the run whose folder holds the checkpoint."""
    folder = location
    for _ in range(_LEVELS):
        for mark in _MARKS:
            file = folder.child(mark)
            if file.exists():
                found = json.loads(file.read_bytes())["spec"]["spec"].get("environment")
                if found is not None:
                    return EnvironmentSpec.model_validate(found)
        folder = folder.parent()
    raise SpecError(
        f"no environment is known for {location}: it does not lie in a run's folder; give one (--env ID)"
    )
