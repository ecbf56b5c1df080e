"""Fields of a resource that have no effect on a machine or cluster, and notes on them if a user sets them.

A test searches the code for fields that nothing reads, and compares them with `INEFFECTIVE_EVERYWHERE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.api import ModelOptions, OfflineRecording, OfflineTraining
from hindcast.api.evaluation import MODEL_ESTIMATES, EvaluationSpec
from hindcast.api.options import options_field, options_lacking_requirement
from hindcast.errors import Problem

INEFFECTIVE_EVERYWHERE: Final[dict[str, str]] = {
    "pipeline.prefetchBatches": "has no effect: the next windows are filled while others are in use, and "
    "pipeline.windowSteps sets their size",
}
"""YAML path of a field -> end of the note on it."""

_POD_FIELD_EFFECT = "has no effect on one machine, where processes use what they need"
INEFFECTIVE_ON_ONE_MACHINE: Final[dict[str, str]] = {
    "pipeline.dataWorkers": "has no effect on one machine, where the learner's process reads the data",
    "learners.cpus": _POD_FIELD_EFFECT,
    "learners.memory": _POD_FIELD_EFFECT,
    "runners.cpus": _POD_FIELD_EFFECT,
    "runners.memory": _POD_FIELD_EFFECT,
    "cluster": "has no effect on one machine",
    "runPolicy": "has no effect on one machine",
    "suspend": "has no effect on one machine, where Ctrl-C suspends and the same command resumes",
}
"""YAML path of a field -> end of the note on it, if the resource runs without a cluster."""

_RECORDED_DATA_FIELDS: Final = (
    "windowSteps",
    "windowBytes",
    "residency",
    "residentBudget",
    "diskCache",
    "sampling",
    "preLearner",
    "preLearnerKwargs",
    "preLearnerBuffer",
    "validateData",
    "dataWorkers",
)
"""Fields of `pipeline` that have no effect without recorded data."""
_RECURRENT_OPTIONS: Final = (
    "cellSize",
    "recurrentKernelInitializer",
    "recurrentBiasInitializer",
    "maxSeqLen",
    "burnIn",
    "initialState",
)
"""Options of `model` that have no effect without a recurrent layer."""


def find_ineffective_fields(
    resource: OfflineRecording | OfflineTraining, is_one_machine: bool
) -> dict[str, Problem]:
    """Return YAML path -> note, for set fields without effect; a field with its default does not count.

    `input.time` stands for the field of all inputs; its note names the first input that sets it without effect.
    """
    general_effects = INEFFECTIVE_EVERYWHERE | (INEFFECTIVE_ON_ONE_MACHINE if is_one_machine else {})
    notes = _make_notes(general_effects) | _find_ineffective_for_kind(resource)
    set_fields = resource.spec.model_dump(by_alias=True, exclude_defaults=True)
    set_notes = {field: note for field, note in notes.items() if _is_set(set_fields, field)}
    if times := _find_ineffective_times(resource):
        set_notes["input.time"] = times[0]
    return set_notes


def _make_notes(effects: Mapping[str, str], *mentions: str) -> dict[str, Problem]:
    return {
        field: Problem(("spec", *field.split(".")), effect, mentions=mentions)
        for field, effect in effects.items()
    }


def _make_requirement_notes(requirements: Mapping[str, str]) -> dict[str, Problem]:
    """Return YAML path -> note, from YAML path -> path of the field without which it has no effect."""
    notes: dict[str, Problem] = {}
    for field, requirement in requirements.items():
        notes |= _make_notes({field: f"has no effect without spec.{requirement}"}, f"spec.{requirement}")
    return notes


def _find_ineffective_for_kind(resource: OfflineRecording | OfflineTraining) -> dict[str, Problem]:
    """Return YAML path -> note, for fields that do not apply to the resource's policy, data or evaluation.

    Fields that the user has not set are included.
    """
    if isinstance(resource, OfflineTraining):
        spec = resource.spec
        data_fields = () if spec.recorded_inputs else _RECORDED_DATA_FIELDS
        effects = {f"pipeline.{field}": "has no effect without recorded data" for field in data_fields}
        if all(source.sampler is None for source in spec.input):
            effects["config.explorationNoise"] = "has no effect without a sampler in spec.input"
        if all(source.path and "://" not in source.path for source in spec.recorded_inputs):
            effects.setdefault("pipeline.diskCache", "has no effect: no input is in an object store")
        config = spec.config if spec.custom_config is None else spec.custom_config
        return (
            _make_notes(effects)
            | _find_ineffective_evaluation_fields(resource)
            | find_ineffective_options(spec.algorithm, config, spec.model)
        )
    if (expert := resource.spec.policy.train) is not None:
        expert_fields = {
            "policy.moduleClass": "has no effect with policy.train, whose model has its own moduleClass"
        }
        return _make_notes(expert_fields) | find_ineffective_options(
            expert.algorithm, expert.config, expert.model, "policy.train."
        )
    is_random = resource.spec.policy.random is not None
    return _make_notes({"policy.moduleClass": "has no effect with policy.random"} if is_random else {})


def find_ineffective_options(
    algorithm: str, config: Mapping[str, Any], model: ModelOptions, spec_path: str = ""
) -> dict[str, Problem]:
    """Return YAML path -> note, for options that have no effect because another option is not set.

    Args:
        algorithm: name of the algorithm.
        config: the algorithm's options, by YAML name.
        model: model of the algorithm's policy.
        spec_path: path of config and model in a resource's spec, ending in a dot; empty for `spec` itself.
    """
    prefix = f"{spec_path}{options_field(algorithm)}"
    lacking_options = options_lacking_requirement(algorithm, config)
    requirements = {
        f"{prefix}.{option}": f"{prefix}.{requirement}" for option, requirement in lacking_options.items()
    }
    requirements |= {
        f"{spec_path}model.{option}": f"{spec_path}model.{requirement}"
        for option, requirement in _find_model_options_lacking_requirement(model).items()
    }
    return _make_requirement_notes(requirements)


def _find_ineffective_evaluation_fields(resource: OfflineTraining) -> dict[str, Problem]:
    """Return YAML path -> note, for fields of `evaluation` that do not apply to the resource.

    These are all fields about playing if it has no environment, and fields of estimates that it does not request.
    """
    spec, offline = resource.spec, resource.spec.offline
    env_fields = (
        []
        if spec.environment is not None
        else [name for name in EvaluationSpec.model_fields if name not in ("offline", "gate")]
    )
    requirements = {f"evaluation.{to_camel(name)}": "environment" for name in env_fields}
    effects: dict[str, str] = {}
    estimates = set() if offline is None else set(offline.estimates)
    if not estimates - {"dm"}:
        effects["evaluation.offline.clip"] = "has no effect without estimates by importance sampling"
    if not estimates & set(MODEL_ESTIMATES):
        effects["evaluation.offline.modelUpdates"] = "has no effect without the estimates dm, dr or wdr"
    if not estimates:
        requirements["evaluation.offline.gamma"] = "evaluation.offline.estimates"
    return _make_requirement_notes(requirements) | _make_notes(effects)


def _find_model_options_lacking_requirement(model: ModelOptions) -> dict[str, str]:
    """Return set option -> option that it requires and lacks, for options of custom modules and recurrent policies.

    Empty for a custom module, which may read any option.
    """
    if model.module_class is not None:
        return {}
    requirements = {"moduleOptions": "moduleClass"}
    if model.recurrent == "none":
        requirements |= dict.fromkeys(_RECURRENT_OPTIONS, "recurrent")
    set_options = model.model_dump(by_alias=True, exclude_defaults=True)
    return {option: requirement for option, requirement in requirements.items() if option in set_options}


def notes_on_ineffective_fields(
    resource: OfflineRecording | OfflineTraining, is_one_machine: bool
) -> list[str]:
    """Return one sentence for each set field that has no effect."""
    notes = [*find_ineffective_fields(resource, is_one_machine).values()]
    return [str(note) for note in [*notes, *_find_ineffective_times(resource)[1:]]]


def _find_ineffective_times(resource: OfflineRecording | OfflineTraining) -> list[Problem]:
    """Return a note for each input that sets `time`, if nothing in the training discounts by it."""
    if not isinstance(resource, OfflineTraining) or resource.spec.algorithm != "BC":
        return []
    spec, offline = resource.spec, resource.spec.offline
    if (offline is not None and offline.estimates) or (spec.evaluation is not None and spec.evaluation.gate):
        return []
    effect = "has no effect on this training: the loss of BC has no discount, and no estimates are requested"
    return [
        Problem(("spec", "input", index, "time"), effect)
        for index, source in enumerate(spec.input)
        if source.time is not None and not source.time.observe
    ]


def _is_set(fields: Mapping[str, Any], field: str) -> bool:
    name, _, subpath = field.partition(".")
    return name in fields and (not subpath or _is_set(fields[name], subpath))
