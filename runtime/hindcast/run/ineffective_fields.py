"""The fields of a resource that change nothing where it is carried out: the table, and the notes on those given.

A test finds by the code's syntax trees which fields nothing reads, and that these are they.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.api import ModelSpec, OfflineRecording, OfflineTraining
from hindcast.api.evaluation import EvaluationSpec
from hindcast.api.options import options_field, options_lacking_requirement

INEFFECTIVE_EVERYWHERE: Final[Mapping[str, str]] = {
    "pipeline.prefetchBatches": "has no effect: the next window is filled while one is in use, and "
    "pipeline.windowSteps says how large they are",
}
"""Field by its YAML names -> what is so."""

_POD = "has no effect on one machine, whose processes take what they need"
INEFFECTIVE_ON_ONE_MACHINE: Final[Mapping[str, str]] = {
    "pipeline.dataWorkers": "has no effect on one machine, where the learner's process reads the data",
    "learners.replicas": "only sets the size of a batch on one machine, where one learner takes all of it",
    "learners.cpus": _POD,
    "learners.memory": _POD,
    "runners.cpus": _POD,
    "runners.memory": _POD,
    "cluster": "has no effect on one machine",
    "runPolicy": "has no effect on one machine",
    "suspend": "has no effect on one machine, where Ctrl-C suspends and the same command resumes",
}

_OF_RECORDED_DATA: Final = (
    "windowSteps",
    "windowBytes",
    "residency",
    "residentBudget",
    "sampling",
    "preLearner",
    "preLearnerKwargs",
    "validateData",
    "dataWorkers",
)
_OF_STATES: Final = (
    "cellSize",
    "recurrentKernelInitializer",
    "recurrentBiasInitializer",
    "maxSeqLen",
    "burnIn",
    "initialState",
)
"""The options of a model that has a recurrent layer."""


def ineffective_fields(resource: OfflineRecording | OfflineTraining, is_one_machine: bool) -> dict[str, str]:
    """The fields given, and not at their defaults, that change nothing: by their YAML names, with what is so."""
    table = {
        **INEFFECTIVE_EVERYWHERE,
        **(INEFFECTIVE_ON_ONE_MACHINE if is_one_machine else {}),
        **_of_the_policy(resource),
    }
    given = resource.spec.model_dump(by_alias=True, exclude_defaults=True)
    return {field: why for field, why in table.items() if _is_in(given, field)}


def _of_the_policy(resource: OfflineRecording | OfflineTraining) -> dict[str, str]:
    """What is of another kind of policy than the one that is trained or played, or of other data."""
    if isinstance(resource, OfflineTraining):
        spec = resource.spec
        idle = () if spec.recorded else _OF_RECORDED_DATA
        table = {f"pipeline.{field}": "has no effect without recorded data" for field in idle}
        config = spec.config if spec.custom_config is None else spec.custom_config
        return table | _of_evaluation(resource) | ineffective_options(spec.algorithm, config, spec.model)
    if (expert := resource.spec.policy.train) is not None:
        own = {"policy.moduleClass": "has no effect with policy.train, whose model has its own moduleClass"}
        return own | ineffective_options(expert.algorithm, expert.config, expert.model, "policy.train.")
    is_random = resource.spec.policy.random is not None
    return {"policy.moduleClass": "has no effect with policy.random"} if is_random else {}


def ineffective_options(
    algorithm: str, config: Mapping[str, Any], model: ModelSpec, at: str = ""
) -> dict[str, str]:
    """Options of an algorithm and of its model that lack another one, and change nothing without it.

    Args:
        algorithm: its name.
        config: its options, by their YAML names.
        model: of its policy.
        at: the place of both in a resource's spec, ending in a dot.
    """
    own = f"{at}{options_field(algorithm)}"
    lacking = options_lacking_requirement(algorithm, config)
    idle = {f"{own}.{option}": f"{own}.{needed}" for option, needed in lacking.items()}
    idle |= {
        f"{at}model.{option}": f"{at}model.{needed}" for option, needed in _of_another_model(model).items()
    }
    return {option: f"has no effect without spec.{needed}" for option, needed in idle.items()}


def _of_evaluation(resource: OfflineTraining) -> dict[str, str]:
    """Options of playing where there is no environment, and of estimates that are not asked for."""
    spec, offline = resource.spec, resource.spec.offline
    played = (
        []
        if spec.environment is not None
        else [name for name in EvaluationSpec.model_fields if name != "offline"]
    )
    table = {f"evaluation.{to_camel(name)}": "has no effect without spec.environment" for name in played}
    asked = set() if offline is None else set(offline.estimates)
    if not asked - {"dm"}:
        table["evaluation.offline.clip"] = "has no effect without estimates by importance sampling"
    if not asked & {"dm", "dr", "wdr"}:
        table["evaluation.offline.modelUpdates"] = "has no effect without the estimates dm, dr or wdr"
    if not asked:
        table["evaluation.offline.gamma"] = "has no effect without evaluation.offline.estimates"
    return table


def _of_another_model(model: ModelSpec) -> dict[str, str]:
    """Options of a module of one's own where there is none, of sequences and states where nothing has a state."""
    if model.module_class is not None:
        return {}
    needed = {"moduleOptions": "moduleClass"}
    if model.recurrent == "none":
        needed |= dict.fromkeys(_OF_STATES, "recurrent")
    given = model.model_dump(by_alias=True, exclude_defaults=True)
    return {option: other for option, other in needed.items() if option in given}


def notes_on_ineffective_fields(
    resource: OfflineRecording | OfflineTraining, is_one_machine: bool
) -> list[str]:
    """A sentence for each of them."""
    return [f"spec.{field} {why}" for field, why in ineffective_fields(resource, is_one_machine).items()]


def _is_in(given: Mapping[str, Any], field: str) -> bool:
    first, _, rest = field.partition(".")
    return first in given and (not rest or _is_in(given[first], rest))
