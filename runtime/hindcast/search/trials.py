"""The trials of a search: each an ordinary training that differs from the others in its settings and seed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic.alias_generators import to_camel

from hindcast.api import OfflineTraining, document_of, spec_hash, validate_resource
from hindcast.api.evaluation import EstimateName, EvaluationSpec, OfflineEvaluationSpec
from hindcast.api.training import StopSpec
from hindcast.errors import SpecError
from hindcast.evaluate.offline import OfflineOptions
from hindcast.run.offline_trainer import make_algorithm
from hindcast.search.space import Over, Setting, choose_settings, setting_text

LOSS: Final = "validationLoss"
METRICS: Final = (*get_args(EstimateName), LOSS)
SET_ASIDE: Final = 0.1
"""Share of the episodes for the last estimate, by default."""

_NOT_TRIED: Final = {
    "seed": "give the number of seeds (--seeds)",
    "evaluation": "all trials are evaluated in the same way; change it in the resource",
    "environment": "a search uses no environment",
    "checkpoint": "the search says where its trials are stored (--output)",
}


@dataclass(frozen=True)
class SearchPlan:
    """All trials of a search, before any of them runs.

    Attributes:
        base: the training that they vary, without an environment.
        by: the metric that they are compared by, one of `METRICS`.
        over: what is varied.
        drawn: whether the settings are random draws.
        settings: those of trial 1, 2, ….
        seeds: of each trial's runs.
        last: how the winner is evaluated on the episodes that are set aside.
    """

    base: OfflineTraining
    by: str
    over: Over
    is_random: bool
    settings: list[Setting]
    seeds: list[int]
    final_evaluation: OfflineEvaluationSpec

    def trainings(self, folder: str) -> dict[tuple[int, int], OfflineTraining]:
        """All runs, by trial and seed; their run folders are in `folder`.

        Raises:
            SpecError: one line per problem, with the trial that has it; two trials that are the same training.
        """
        found: dict[tuple[int, int], OfflineTraining] = {}
        problems: dict[str, str] = {}
        for trial, setting in enumerate(self.settings, start=1):
            try:
                for seed in self.seeds:
                    name = f"trial-{trial:03d}-seed-{seed}"
                    found[trial, seed] = _varied(self.base, setting, name, seed, folder)
            except SpecError as error:
                for line in str(error).splitlines():
                    problems.setdefault(line, f"{title(trial, setting)}: {line}")
        if problems:
            raise SpecError("\n".join(problems.values()))
        self._refuse_repeats(found)
        return found

    def _refuse_repeats(self, trainings: Mapping[tuple[int, int], OfflineTraining]) -> None:
        first: dict[str, int] = {}
        for trial in range(1, len(self.settings) + 1):
            earlier = first.setdefault(spec_hash(trainings[trial, self.seeds[0]]), trial)
            if earlier != trial:
                one, other = (title(each, self.settings[each - 1]) for each in (earlier, trial))
                raise SpecError(f"{one} and {other} are the same training: remove one of the values.")


def plan_search(
    resource: OfflineTraining,
    over: Over,
    *,
    trials: int | None,
    seeds: int,
    by: str | None,
    confirm: float | None,
) -> SearchPlan:
    """The trials of a search; arguments as of `search`.

    Raises:
        SpecError: what keeps them from being compared, in one sentence.
    """
    offline = resource.spec.offline
    if offline is None:
        raise SpecError(
            "a search compares trials by recorded episodes: add evaluation.offline to the resource, such as "
            "evaluation: {offline: {heldOut: 0.2, estimates: [dr], explore: true}}."
        )
    by = by or (offline.estimates[0] if offline.estimates else LOSS)
    _check(resource, offline, over, by)
    if confirm is None:
        confirm = SET_ASIDE if offline.set_aside is None else offline.set_aside
    if not 0 <= confirm < 1:
        raise SpecError(f"--confirm is {confirm:g}: expected a share of the episodes below 1, or 0 for none.")
    if seeds < 1:
        raise SpecError(f"--seeds is {seeds}: expected at least 1.")
    last = _evaluation(resource, offline, by, confirm or None)
    return SearchPlan(
        base=with_evaluation(resource, _of_the_loss(last) if by == LOSS else last),
        by=by,
        over=over,
        is_random=trials is not None,
        settings=choose_settings(over, trials, resource.spec.seed),
        seeds=[resource.spec.seed + number for number in range(seeds)],
        final_evaluation=last,
    )


def title(trial: int, setting: Setting) -> str:
    """`trial 3 (config.lr=0.001)`."""
    return f"trial {trial} ({setting_text(setting)})"


def with_evaluation(resource: OfflineTraining, offline: OfflineEvaluationSpec | None) -> OfflineTraining:
    """The training without an environment, evaluated on recorded episodes only, or not at all."""
    evaluation = None if offline is None else EvaluationSpec(offline=offline)
    spec = resource.spec.model_copy(update={"environment": None, "evaluation": evaluation})
    return resource.model_copy(update={"spec": spec, "status": None})


def _check(resource: OfflineTraining, offline: OfflineEvaluationSpec, over: Over, by: str) -> None:
    spec = resource.spec
    if by not in METRICS:
        raise SpecError(f"--by is {by!r}: expected one of {', '.join(METRICS)}.")
    if spec.sampler is not None:
        raise SpecError(
            "spec.input has a sampler, which plays in an environment: a search uses recorded data only."
        )
    if spec.stop.episode_return_mean is not None:
        raise SpecError(
            "spec.stop.episodeReturnMean needs an environment, and a search uses none: remove it."
        )
    if spec.environment is not None and (
        not spec.environment.normalize_actions or spec.environment.clip_actions
    ):
        raise SpecError(
            "spec.environment sets normalizeActions or clipActions, which trials without an environment cannot follow: "
            "remove them, or the environment."
        )
    for path in over:
        field = path.replace("[", ".").partition(".")[0]
        if field in _NOT_TRIED:
            raise SpecError(f"{path} cannot be searched over: {_NOT_TRIED[field]}.")
        if field == "input" and offline.held_out is not None:
            raise SpecError(
                f"{path} cannot be searched over with evaluation.offline.heldOut, as trials would be evaluated on "
                "different episodes: name those in evaluation.offline.input."
            )
    if by == LOSS:
        _check_losses(spec.stop, over)


def _check_losses(stop: StopSpec, over: Over) -> None:
    if "algorithm" in over:
        raise SpecError(
            "losses of different algorithms cannot be compared: compare the trials by an estimate "
            "(evaluation.offline.estimates, --by)."
        )
    for field in ("estimated_return", "validation_loss"):
        if getattr(stop, field) is not None:
            raise SpecError(
                f"spec.stop.{to_camel(field)} cannot end trials that are compared by their loss at the end: remove "
                "it, or compare them by an estimate (--by)."
            )


def _evaluation(
    resource: OfflineTraining, offline: OfflineEvaluationSpec, by: str, set_aside: float | None
) -> OfflineEvaluationSpec:
    """The resource's, with that metric first and one discount for all trials."""
    estimates = offline.estimates if by == LOSS else list(dict.fromkeys((by, *offline.estimates)))
    gamma = offline.gamma
    if gamma is None and estimates:
        gamma = float(getattr(make_algorithm(resource).options, "gamma", OfflineOptions.gamma))
    return offline.model_copy(update={"estimates": estimates, "gamma": gamma, "set_aside": set_aside})


def _of_the_loss(offline: OfflineEvaluationSpec) -> OfflineEvaluationSpec:
    """Once, at the end: without estimates, the last weights of a training are its result."""
    kept = {name: getattr(offline, name) for name in ("held_out", "held_out_seed", "set_aside", "input")}
    return OfflineEvaluationSpec(**{name: value for name, value in kept.items() if value is not None})


def _varied(base: OfflineTraining, setting: Setting, name: str, seed: int, folder: str) -> OfflineTraining:
    document = document_of(base, exclude_none=True)
    document["metadata"]["name"] = name
    spec = document["spec"]
    for path, value in setting.items():
        _put(spec, path, value)
    spec["seed"] = seed
    spec["checkpoint"] = {**spec.get("checkpoint", {}), "path": folder}
    found = validate_resource(document)
    assert isinstance(found, OfflineTraining)
    return found


def _put(spec: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at a path such as `config.lr` or `input[0].top`.

    Raises:
        SpecError: the path goes through something that has no fields.
    """
    here: Any = spec
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    for step in parents:
        here = here.setdefault(step, {}) if isinstance(here, dict) else _entry(here, step, path)
    if isinstance(here, dict):
        here[last] = copy.deepcopy(value)
        return
    _entry(here, last, path)
    here[int(last)] = copy.deepcopy(value)


def _entry(here: Any, step: str, path: str) -> Any:
    if isinstance(here, list) and step.isdigit() and int(step) < len(here):
        return here[int(step)]
    raise SpecError(f"spec.{path}: there is no field {step!r} at this place of the resource.")
