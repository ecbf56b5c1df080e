"""How good the policy of a checkpoint is: in the environment that it was trained for, in another, by recorded data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hindcast.algorithms import REGISTRY
from hindcast.api import EnvironmentSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.datasets.prepare.opening import open_data
from hindcast.errors import DataError, SpecError
from hindcast.evaluate.environment import EnvReport, evaluate_policy
from hindcast.evaluate.offline import OfflineOptions, OfflineReport, evaluate_offline
from hindcast.formats.dataset_folder.folder_owner import read_owner
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.models.policy import Policy
from hindcast.storage.location import Location, missing_error, resolve

_MODULES_IN = ("", "_hindcast/policy/module")
_CHECKPOINTS_IN = ("", "checkpoints", "_hindcast/policy/checkpoints")
_MARKS = ("spec.json", "_hindcast/spec.json")
_LEVELS = 6

SET_ASIDE = "the episodes set aside"
"""What they are called in messages."""


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
            checkpoint is in.
        module_class: the policy's `model.moduleClass`, where it has one.
        episodes: whole episodes to play.
        seed: of resets and exploration.
        explore: sample actions; False takes the policy's mode.

    Raises:
        DataError: no checkpoint there.
        SpecError: no environment given and none found.
    """
    location = _existing(path)
    module = _module(location)
    where = EnvironmentSpec(id=environment) if environment is not None else _environment_of(location)
    policy = _policy(module, module_class)
    report = evaluate_policy(policy, where, duration=episodes, seed=seed, explore=explore)
    return Evaluation(str(module), where, report)


@dataclass(frozen=True)
class OfflineEvaluation:
    """What was judged, and what recorded episodes say of it."""

    policy: str
    gamma: float
    report: OfflineReport


def evaluate_checkpoint_offline(
    path: str | Path,
    data: Sequence[str] | Dataset,
    *,
    module_class: str | None = None,
    gamma: float | None = None,
    episodes: int | None = None,
    options: OfflineOptions | None = None,
    hooks: Hooks = NO_HOOKS,
) -> OfflineEvaluation:
    """Judge a checkpoint by recorded episodes, without its environment.

    Args:
        path: as of `evaluate_checkpoint`.
        data: the episodes, or where they are; prepared where they are not whole and in order.
        module_class: the policy's `model.moduleClass`, where it has one.
        gamma: discount; None takes that of the run's algorithm, and 0.99 where it has none.
        episodes: draw so many of them; None takes all.
        options: the others; the defaults if None.
        watch: receives the progress of preparing and fitting.

    Raises:
        DataError: no checkpoint there, or as of `evaluate_offline`.
    """
    policy, module = load_policy(path, module_class)
    if gamma is None:
        gamma = _gamma_of(resolve(path))
    dataset = data if isinstance(data, Dataset) else open_data(list(data), hooks=hooks)
    name = SET_ASIDE if isinstance(data, Dataset) else ", ".join(data)
    if episodes is not None and episodes < dataset.num_episodes:
        dataset = dataset.sample(episodes, seed=(options or OfflineOptions()).seed)
    chosen = replace(options or OfflineOptions(), gamma=gamma)
    report = evaluate_offline(policy, dataset, name, chosen, hooks.progress)
    return OfflineEvaluation(module, gamma, report)


def load_policy(path: str | Path, module_class: str | None = None) -> tuple[Policy, str]:
    """The policy of a checkpoint, and its folder; arguments as of `evaluate_checkpoint`.

    Raises:
        DataError: no checkpoint there.
    """
    module = _module(_existing(path))
    return _policy(module, module_class), str(module)


def _existing(path: str | Path) -> Location:
    location = resolve(path)
    if not location.exists():
        raise missing_error(location)
    return location


def _policy(module: Location, module_class: str | None) -> Policy:
    return Policy.load(str(module), allow_classes=[module_class] if module_class else ())


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
    if (mark := read_owner(location.child(FOLDER))) is not None:
        raise DataError(f"{location} {_without_policy(mark)}: give a checkpoint, or a run folder.")
    return find_checkpoint(location).location


def _without_policy(mark: dict[str, Any]) -> str:
    """Why there is no policy in a dataset that carries this mark."""
    match mark:
        case {"spec": {"spec": {"policy": {"random": _}}}}:
            return "was recorded by a random policy, so it holds none"
        case _:
            return "is a dataset that holds no policy"


def _environment_of(location: Location) -> EnvironmentSpec:
    """The environment of the run whose folder holds the checkpoint."""
    for spec in _specs_above(location):
        if spec.get("environment") is not None:
            return EnvironmentSpec.model_validate(spec["environment"])
    raise SpecError(
        f"no environment is known for {location}: it is not in a run's folder; give one (--env ID)"
    )


def _gamma_of(location: Location) -> float:
    """The discount of the run whose folder holds the checkpoint."""
    for spec in _specs_above(location):
        algorithm = REGISTRY.get(spec.get("algorithm", ""))
        if algorithm is not None and "gamma" in algorithm.Options.model_fields:
            return float(spec.get("config", {}).get("gamma", algorithm.Options.model_fields["gamma"].default))
    return OfflineOptions.gamma


def _specs_above(location: Location) -> Iterator[dict[str, Any]]:
    return (document["spec"] for document in enclosing_resources(location))


def enclosing_resources(location: Location) -> Iterator[dict[str, Any]]:
    """The resources of the runs in whose folders the location is, the nearest first, as YAML has them."""
    folder = location
    for _ in range(_LEVELS):
        for mark in _MARKS:
            file = folder.child(mark)
            if file.exists():
                yield json.loads(file.read_bytes())["spec"]
        folder = folder.parent()
