"""Evaluate the policy of a checkpoint in an environment or on recorded episodes.

The environment, the discount and the form of the data come from the run whose folder contains the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from hindcast.algorithms import REGISTRY
from hindcast.api import EnvironmentSpec
from hindcast.api.evaluation import EvaluationSpec
from hindcast.api.input import InputSource
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.datasets.inspection.action_units import find_wrong_units
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, SpecError, UserError
from hindcast.evaluate.action_comparison import ActionComparison
from hindcast.evaluate.environment import EnvReport, evaluate_policy
from hindcast.evaluate.offline import OfflineEvaluator, OfflineOptions, OfflineReport
from hindcast.formats.dataset_folder.folder_owner import read_owner
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.formatting import acting
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.models.policy import Policy
from hindcast.run.evaluation.trained_episodes import TRAINED_EPISODES_FILE, exclude_trained_episodes
from hindcast.storage.location import Location, missing_error, resolve

_MODULE_SUBFOLDERS = ("", "_hindcast/policy/module")
_CHECKPOINT_SUBFOLDERS = ("", "checkpoints", "_hindcast/policy/checkpoints")
_OWNER_FILES = ("spec.json", "_hindcast/spec.json")
_MAX_SEARCHED_FOLDERS = 6
"""Number of folders that are searched upwards for an owner record: all folders of the longest path of a policy,
`<dataset>/_hindcast/policy/checkpoints/checkpoint-<updates>/module`."""

SET_ASIDE_NAME = "the episodes set aside"
"""Name of set-aside episodes in messages."""


@dataclass(frozen=True)
class Evaluation:
    """Result of evaluating a policy in an environment.

    Attributes:
        policy: location of the policy.
        environment: environment that was played.
        report: returns and lengths.
    """

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
    """Evaluate a checkpoint in an environment.

    Args:
        path: a checkpoint, its `module`, a folder of checkpoints (its best, else its latest), a run folder,
            or a dataset (the recorded policy).
        environment: Gymnasium id or "package.module:EnvClass"; None takes the environment of the run
            that contains the checkpoint.
        module_class: the policy's `model.moduleClass`, if it has one.
        episodes: number of episodes to play.
        seed: seed of resets and exploration.
        explore: sample actions; False takes the mode of their distribution.

    Raises:
        DataError: there is no checkpoint at `path`.
        SpecError: no environment was passed and none is known.
    """
    location = _resolve_existing(path)
    module = _find_module(location)
    environment_spec = (
        EnvironmentSpec(id=environment) if environment is not None else _find_environment(location)
    )
    policy = _load_module(module, module_class)
    report = evaluate_policy(policy, environment_spec, duration=episodes, seed=seed, explore=explore)
    return Evaluation(str(module), environment_spec, report)


@dataclass(frozen=True)
class OfflineEvaluation:
    """Result of evaluating a policy on recorded episodes.

    Attributes:
        policy: location of the policy.
        gamma: discount that was used.
        num_trained: number of episodes that were left out, because the policy was trained on them; None if it is not in
            a run folder that records this.
        report: estimates and diagnostics.
        compare_actions: compares the policy's actions with the recorded ones.
    """

    policy: str
    gamma: float
    num_trained: int | None
    report: OfflineReport
    compare_actions: Callable[[], ActionComparison]

    @cached_property
    def actions(self) -> ActionComparison:
        """Comparison of the policy's actions with the recorded ones."""
        return self.compare_actions()


def evaluate_checkpoint_offline(
    path: str | Path,
    data: Sequence[str] | Reading | Dataset | JudgingData,
    *,
    module_class: str | None = None,
    gamma: float | None = None,
    episodes: int | None = None,
    options: OfflineOptions | None = None,
    hooks: Hooks = NO_HOOKS,
) -> OfflineEvaluation:
    """Evaluate a checkpoint on recorded episodes, without its environment.

    Args:
        path: see `evaluate_checkpoint`.
        data: paths of recorded data, which are prepared if they are not whole episodes in order, and read like the
            inputs of the checkpoint's run (see `open_like_inputs`); a reading; the
            episodes that the run set aside (`load_set_aside`); or what `open_judging_data` returned.
        module_class: the policy's `model.moduleClass`, if it has one.
        gamma: discount; None takes the discount of the run's algorithm, or 0.99 if the algorithm has no discount.
        episodes: number of episodes to sample; None takes all.
        options: further options; None takes the defaults, and `gamma` in them is ignored.
        hooks: receive the progress of preparing and fitting, and notes on data whose values contradict their units.

    Raises:
        DataError: there is no checkpoint at `path`, or the data are invalid (see `evaluate_offline`).
        SpecError: fewer than two of the episodes remain without those that the policy was trained on.
    """
    policy, module = load_policy(path, module_class)
    if gamma is None:
        gamma = find_gamma(resolve(path))
    dataset, num_trained, name = open_judging_data(path, data, hooks)
    if not isinstance(data, Dataset | JudgingData):  # the run has checked its own data
        for text in find_wrong_units(dataset, policy.action_space):
            hooks.note(f"{name}: {text}")
    if episodes is not None and episodes < dataset.num_episodes:
        dataset = dataset.sample(episodes, seed=(options or OfflineOptions()).seed)
    offline_options = replace(options or OfflineOptions(), gamma=gamma)
    evaluator = OfflineEvaluator(policy, dataset, name, offline_options)
    report = evaluator.evaluate(policy, hooks.progress)
    return OfflineEvaluation(module, gamma, num_trained, report, partial(evaluator.compare_actions, policy))


class JudgingData(NamedTuple):
    """Episodes that judge a policy.

    Attributes:
        dataset: the episodes, without those that trained the policy.
        num_trained: number of episodes that were left out, because they trained the policy; None if it is not known
            which ones did.
        name: name of the data in messages.
    """

    dataset: Dataset
    num_trained: int | None
    name: str


def open_judging_data(
    path: str | Path,
    data: Sequence[str] | Reading | Dataset | JudgingData,
    hooks: Hooks = NO_HOOKS,
    *,
    dataset_name: str = SET_ASIDE_NAME,
) -> JudgingData:
    """Open data without the episodes that trained a checkpoint; `JudgingData` are returned unchanged.

    Args:
        path, data, hooks: see `evaluate_checkpoint_offline`.
        dataset_name: name of the data in messages, if they are a `Dataset`.

    Raises:
        DataError: the data cannot be opened.
        SpecError: the policy was trained on all but one of the episodes.
    """
    if isinstance(data, JudgingData):
        return data
    if isinstance(data, Dataset):
        dataset, name = data, dataset_name
    elif isinstance(data, Reading):
        dataset, name = open_data(data, hooks=hooks), data.name
    else:
        dataset, name = open_like_inputs(data, resolve(path), hooks), ", ".join(data)
    refuse_missing_times(dataset, resolve(path), name)
    if (record := find_trained_episodes(resolve(path))) is None:
        return JudgingData(dataset, None, name)
    return JudgingData(*exclude_trained_episodes(record, dataset, name), name)


def open_like_inputs(paths: Sequence[str], location: Location, hooks: Hooks) -> Dataset:
    """Open data as the run whose folder contains the checkpoint reads its inputs; if that fails, without its options.

    Without the run's schema, other columns might be chosen as observations, and missing values replaced differently.
    The second attempt is for data in another form than the inputs, such as a log of decisions.

    Raises:
        DataError: the data cannot be opened.
    """
    reading_error: UserError | None = None
    for spec in _enclosing_specs(location):
        for source in spec.get("input", ()):
            if "path" in source and source.keys() & {"schema", "format", "readOptions", "prepare", "time"}:
                reading = Reading.from_input(InputSource.model_validate(source), str(source["path"]))
                try:
                    return open_data(replace(reading, paths=tuple(paths)), hooks=hooks)
                except (DataError, SpecError) as error:
                    reading_error = reading_error or error
    try:
        return open_data(list(paths), hooks=hooks)
    except DataError as error:
        raise reading_error or error from None


def refuse_missing_times(dataset: Dataset, location: Location, name: str) -> None:
    """Refuse data without durations of steps, if the run whose folder contains the checkpoint discounts time.

    Raises:
        DataError: the returns of the data would be discounted per step.
    """
    inputs = (source for spec in _enclosing_specs(location) for source in spec.get("input", ()))
    if Columns.DELTA_T not in dataset.spec.leaves and any(source.get("time") for source in inputs):
        raise DataError(
            "has no times of rows, but the run discounts time",
            path=name,
            remedy="name their column (--time), or convert the data with it",
        )


def load_policy(path: str | Path, module_class: str | None = None) -> tuple[Policy, str]:
    """Load the policy of a checkpoint; return the policy and its location. Arguments: see `evaluate_checkpoint`.

    Raises:
        DataError: there is no checkpoint at `path`.
    """
    module = _find_module(_resolve_existing(path))
    return _load_module(module, module_class), str(module)


def _resolve_existing(path: str | Path) -> Location:
    location = resolve(path)
    if not location.exists():
        raise missing_error(location)
    return location


def _load_module(module: Location, module_class: str | None) -> Policy:
    return Policy.load(str(module), allow_classes=[module_class] if module_class else ())


def _find_module(location: Location) -> Location:
    """Return the folder of the policy's files; see `path` of `evaluate_checkpoint`."""
    for subfolder in _MODULE_SUBFOLDERS:
        if location.child(subfolder, "module.json").exists():
            return location.child(subfolder)
    for subfolder in _CHECKPOINT_SUBFOLDERS:
        folder = location.child(subfolder) if subfolder else location
        try:
            return find_checkpoint(folder).location
        except DataError:
            # A damaged checkpoint is an error; the search continues only if there is no checkpoint.
            if folder.child("checkpoint.json").exists():
                raise
    if (owner := read_owner(location.child(FOLDER))) is not None:
        raise DataError(f"{location} {_no_policy_reason(owner)}: use a checkpoint, or a run folder.")
    return find_checkpoint(location).location


def _no_policy_reason(owner: dict[str, Any]) -> str:
    """Return the reason why a dataset with this owner contains no policy."""
    match owner:
        case {"spec": {"spec": {"policy": {"random": _}}}}:
            return "was recorded by a random policy and contains no policy"
        case _:
            return "is a dataset that contains no policy"


def _find_environment(location: Location) -> EnvironmentSpec:
    """Return the environment of the run whose folder contains the checkpoint."""
    for spec in _enclosing_specs(location):
        if spec.get("environment") is not None:
            return EnvironmentSpec.model_validate(spec["environment"])
    raise SpecError(
        f"{location}: the environment is unknown, because the policy is not in a run folder; set it (--env ID)"
    )


def find_gamma(location: Location) -> float:
    """Return the discount of the run whose folder contains the checkpoint; the default of `OfflineOptions` without one.

    A custom algorithm's discount is not known here, because its class is not imported.
    """
    for spec in _enclosing_specs(location):
        algorithm = REGISTRY.get(spec.get("algorithm", ""))
        if algorithm is not None and "gamma" in algorithm.Options.model_fields:
            return float(spec.get("config", {}).get("gamma", algorithm.Options.model_fields["gamma"].default))
    return OfflineOptions.gamma


def choose_explore(
    path: str | Path, explore: bool | None, note: Callable[[str], None] = lambda _: None
) -> bool:
    """Choose between sampled and greedy actions of a checkpoint: as its run judges it (`spec.evaluation`), else greedy.

    Evaluation, export and serving choose by this function, so that the judged policy is the deployed one.

    Args:
        path: see `evaluate_checkpoint`.
        explore: True for sampled and False for greedy actions, as the user requested; None for the run's.
        note: called with a sentence if the user requested other actions than those that the run judges.
    """
    evaluations = (spec["evaluation"] for spec in _enclosing_specs(resolve(path)) if spec.get("evaluation"))
    judged = next((EvaluationSpec.model_validate(document).judges_samples for document in evaluations), None)
    if explore is None:
        return bool(judged)
    if judged is not None and explore != judged:
        note(
            f"{path}: {acting(explore)} were requested, but the run judges the policy by {acting(judged)} "
            "(spec.evaluation): its verdicts do not hold for this policy"
        )
    return explore


def _enclosing_specs(location: Location) -> Iterator[dict[str, Any]]:
    """Yield the `spec` sections of `enclosing_resources`."""
    return (document["spec"] for document in enclosing_resources(location))


def enclosing_resources(location: Location) -> Iterator[dict[str, Any]]:
    """Yield the resources of the runs whose folders contain the location, nearest first, as JSON with YAML names."""
    return (document for _, document in enclosing_runs(location))


def enclosing_runs(location: Location) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Yield the folders and resources (see `enclosing_resources`) of the runs whose folders contain the location."""
    for folder in _enclosing_folders(location):
        for name in _OWNER_FILES:
            file = folder.child(name)
            if file.exists():
                yield folder, json.loads(file.read_bytes())["spec"]


def find_run_folder(path: str | Path) -> Location | None:
    """Return the folder of the training's run that contains a checkpoint; None if there is none."""
    runs = enclosing_runs(resolve(path))
    return next((folder for folder, document in runs if document["kind"] == "OfflineTraining"), None)


def find_trained_episodes(location: Location) -> Location | None:
    """Return the record of the episodes that trained a policy; None if no enclosing folder has one."""
    files = (folder.child(TRAINED_EPISODES_FILE) for folder in _enclosing_folders(location))
    return next((file for file in files if file.exists()), None)


def _enclosing_folders(location: Location) -> Iterator[Location]:
    """Yield the location and the folders that may contain a run with it, nearest first."""
    folder = location
    for _ in range(_MAX_SEARCHED_FOLDERS):
        yield folder
        folder = folder.parent()
