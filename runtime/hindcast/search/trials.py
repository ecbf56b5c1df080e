"""The trials of a search: ordinary trainings that differ in their settings and seed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from pydantic.alias_generators import to_camel

from hindcast.api import OfflineTraining, document_of, spec_hash, validate_resource
from hindcast.api.evaluation import EstimateName, EvaluationSpec, OfflineEvaluationSpec
from hindcast.api.training import StopSpec
from hindcast.errors import Problem, SpecError
from hindcast.evaluate.offline import OfflineOptions
from hindcast.run.training.algorithm import make_algorithm
from hindcast.search.space import SearchSpace, Setting, choose_settings, setting_text

LOSS_METRIC: Final = "validationLoss"
METRICS: Final = (*get_args(EstimateName), LOSS_METRIC)
DEFAULT_SET_ASIDE: Final = 0.1
"""Default fraction of the episodes that no trial sees; the winner is evaluated on them."""

_FIXED_FIELDS: Final = {
    "seed": "set the number of seeds instead (--seeds)",
    "evaluation": "all trials are evaluated in the same way; change it in the resource",
    "environment": "a search uses no environment",
    "checkpoint": "the search stores its trials in its own folder (--output)",
}
"""Field of `spec` that trials cannot vary -> the reason, or what to do instead."""


@dataclass(frozen=True)
class SearchPlan:
    """All trials of a search, before any of them runs.

    Attributes:
        base: the training to vary, without an environment.
        metric: metric by which the trials are compared, one of `METRICS`.
        search_space: values or ranges by path.
        is_random: True if the settings are random draws, False if they are all combinations.
        settings: setting of each trial, from trial 1 on.
        seeds: seeds of each trial's runs.
        final_evaluation: evaluation of the winner on the episodes that are set aside; its `set_aside` is None if there
            are no such episodes.
    """

    base: OfflineTraining
    metric: str
    search_space: SearchSpace
    is_random: bool
    settings: list[Setting]
    seeds: list[int]
    final_evaluation: OfflineEvaluationSpec

    def trainings(self, folder: str) -> dict[tuple[int, int], OfflineTraining]:
        """Return all trainings by (number of the trial, seed); their run folders are in `folder`.

        Raises:
            SpecError: a trial is invalid (one line per problem), or two trials are the same training.
        """
        trainings: dict[tuple[int, int], OfflineTraining] = {}
        problems: dict[Problem, Problem] = {}
        for trial, setting in enumerate(self.settings, start=1):
            try:
                for seed in self.seeds:
                    name = f"trial-{trial:03d}-seed-{seed}"
                    trainings[trial, seed] = _make_training(self.base, setting, name, seed, folder)
            except SpecError as error:
                for problem in error.problems:
                    # A problem that several trials share is reported once, for the first of them.
                    problems.setdefault(problem, replace(problem, resource=trial_title(trial, setting)))
        if problems:
            raise SpecError.of(problems.values())
        self._refuse_duplicates(trainings)
        return trainings

    def _refuse_duplicates(self, trainings: Mapping[tuple[int, int], OfflineTraining]) -> None:
        trial_by_hash: dict[str, int] = {}
        for trial in range(1, len(self.settings) + 1):
            first_trial = trial_by_hash.setdefault(spec_hash(trainings[trial, self.seeds[0]]), trial)
            if first_trial != trial:
                first_title, duplicate_title = (
                    trial_title(number, self.settings[number - 1]) for number in (first_trial, trial)
                )
                raise SpecError(
                    f"{first_title} and {duplicate_title} are the same training: remove one of the values."
                )


def plan_search(
    resource: OfflineTraining,
    search_space: SearchSpace,
    *,
    trials: int | None,
    seeds: int,
    by: str | None,
    confirm: float | None,
) -> SearchPlan:
    """Plan the trials of a search; arguments as for `search`.

    Raises:
        SpecError: an argument is invalid, or the trials could not be compared.
    """
    offline = resource.spec.offline
    if offline is None:
        raise SpecError(
            "a search compares trials on recorded episodes: add evaluation.offline to the resource, such as "
            "evaluation: {offline: {heldOut: 0.2, estimates: [dr], explore: true}}."
        )
    by = by or (offline.estimates[0] if offline.estimates else LOSS_METRIC)
    _check_resource(resource, offline, search_space, by)
    if confirm is None:
        confirm = DEFAULT_SET_ASIDE if offline.set_aside is None else offline.set_aside
    if not 0 <= confirm < 1:
        raise SpecError(f"--confirm is {confirm:g}, expected a share of the episodes below 1, or 0 for none.")
    if seeds < 1:
        raise SpecError(f"--seeds is {seeds}, expected at least 1.")
    final_evaluation = _make_evaluation(resource, offline, by, confirm or None)
    return SearchPlan(
        base=with_evaluation(
            resource, _loss_evaluation(final_evaluation) if by == LOSS_METRIC else final_evaluation
        ),
        metric=by,
        search_space=search_space,
        is_random=trials is not None,
        settings=choose_settings(search_space, trials, resource.spec.seed),
        seeds=[resource.spec.seed + offset for offset in range(seeds)],
        final_evaluation=final_evaluation,
    )


def trial_title(trial: int, setting: Setting) -> str:
    """Return the name of a trial in messages: `trial 3 (config.lr=0.001)`."""
    return f"trial {trial} ({setting_text(setting)})"


def with_evaluation(resource: OfflineTraining, offline: OfflineEvaluationSpec | None) -> OfflineTraining:
    """Return the training without an environment and status, evaluated as `offline` says; not at all for None."""
    evaluation = None if offline is None else EvaluationSpec(offline=offline)
    spec = resource.spec.model_copy(update={"environment": None, "evaluation": evaluation})
    return resource.model_copy(update={"spec": spec, "status": None})


def _check_resource(
    resource: OfflineTraining, offline: OfflineEvaluationSpec, search_space: SearchSpace, by: str
) -> None:
    spec = resource.spec
    if by not in METRICS:
        raise SpecError(f"--by is {by!r}, expected one of {', '.join(METRICS)}.")
    if spec.sampler is not None:
        raise SpecError(
            "has a sampler, which plays in an environment; a search uses recorded data only: remove it.",
            field="spec.input",
        )
    if spec.stop.episode_return_mean is not None:
        raise SpecError(
            "needs an environment, but a search uses none: remove it.",
            field="spec.stop.episodeReturnMean",
        )
    if spec.environment is not None and (
        not spec.environment.normalize_actions or spec.environment.clip_actions
    ):
        raise SpecError(
            "sets normalizeActions or clipActions, which trials without an environment cannot apply: "
            "remove these fields, or the environment.",
            field="spec.environment",
        )
    for path in search_space:
        field = path.replace("[", ".").partition(".")[0]
        if field in _FIXED_FIELDS:
            raise SpecError(f"{path} cannot be searched over: {_FIXED_FIELDS[field]}.")
        if field == "input" and offline.held_out is not None:
            raise SpecError(
                f"{path} cannot be searched over with evaluation.offline.heldOut, because trials would be evaluated on "
                "different episodes: set evaluation.offline.input instead."
            )
    if by == LOSS_METRIC:
        _check_losses(spec.stop, search_space)


def _check_losses(stop: StopSpec, search_space: SearchSpace) -> None:
    if "algorithm" in search_space:
        raise SpecError(
            "the losses of different algorithms cannot be compared: compare the trials by an estimate "
            "(evaluation.offline.estimates, --by)."
        )
    for field in ("estimated_return", "validation_loss"):
        if getattr(stop, field) is not None:
            raise SpecError(
                "cannot stop trials that are compared by their last loss: remove it, or "
                "compare the trials by an estimate (--by).",
                field=f"spec.stop.{to_camel(field)}",
            )


def _make_evaluation(
    resource: OfflineTraining, offline: OfflineEvaluationSpec, by: str, set_aside: float | None
) -> OfflineEvaluationSpec:
    """Return the resource's evaluation with the metric `by` first and one discount for all trials."""
    # A trial may vary the algorithm's gamma; estimates with different discounts could not be compared.
    estimates = offline.estimates if by == LOSS_METRIC else list(dict.fromkeys((by, *offline.estimates)))
    gamma = offline.gamma
    if gamma is None and estimates:
        gamma = float(getattr(make_algorithm(resource).options, "gamma", OfflineOptions.gamma))
    return offline.model_copy(update={"estimates": estimates, "gamma": gamma, "set_aside": set_aside})


def _loss_evaluation(offline: OfflineEvaluationSpec) -> OfflineEvaluationSpec:
    """Return an evaluation without estimates, which runs once, at the end."""
    # Without estimates the result of a training is its last weights, so no earlier checkpoint is evaluated.
    fields = {name: getattr(offline, name) for name in ("held_out", "held_out_seed", "set_aside", "input")}
    return OfflineEvaluationSpec(**{name: value for name, value in fields.items() if value is not None})


def _make_training(
    base: OfflineTraining, setting: Setting, name: str, seed: int, folder: str
) -> OfflineTraining:
    """Return `base` with a trial's setting, a name and a seed; its run folder is in `folder`."""
    document = document_of(base, exclude_none=True)
    document["metadata"]["name"] = name
    spec = document["spec"]
    for path, value in setting.items():
        _set_field(spec, path, value)
    spec["seed"] = seed
    spec["checkpoint"] = {**spec.get("checkpoint", {}), "path": folder}
    training = validate_resource(document)
    assert isinstance(training, OfflineTraining)
    return training


def _set_field(spec: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at a path such as `config.lr` or `input[0].top`.

    Raises:
        SpecError: a list in the path is too short, or a value in it has no fields.
    """
    parent: Any = spec
    *parents, name = path.replace("[", ".").replace("]", "").split(".")
    for key in parents:
        parent = parent.setdefault(key, {}) if isinstance(parent, dict) else _list_entry(parent, key, path)
    if isinstance(parent, dict):
        parent[name] = copy.deepcopy(value)
        return
    _list_entry(parent, name, path)  # raises if the list has no such entry
    parent[int(name)] = copy.deepcopy(value)


def _list_entry(parent: Any, key: str, path: str) -> Any:
    if isinstance(parent, list) and key.isdigit() and int(key) < len(parent):
        return parent[int(key)]
    raise SpecError(f"the resource has no field {key!r} there.", field=f"spec.{path}")
