"""Convert options to resources, which the models of YAML check, and to the plan of `build_algo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from hindcast.api import ModelOptions, OfflineRecording, OfflineTraining
from hindcast.api.base import API_VERSION, to_yaml_types
from hindcast.api.evaluation import EvaluationSpec
from hindcast.api.loading import check_algorithms
from hindcast.api.options import algorithms, options_field
from hindcast.api.recording import RunnersSpec
from hindcast.api.sentences import problems_of
from hindcast.errors import DataError, Problem, SpecError
from hindcast.rllib.builder.composite_options import expand_options
from hindcast.rllib.builder.input_entries import input_fields
from hindcast.rllib.builder.option_names import is_unset
from hindcast.rllib.builder.option_values import (
    CONVERTERS,
    check_batching,
    has_recorded_input,
    output_path,
)
from hindcast.rllib.builder.options import OPTIONS_BY_NAME, is_in_table, option_names_in_errors

Options = Mapping[str, Any]
Fields = dict[str, Any]
M = TypeVar("M", bound=BaseModel)
R = TypeVar("R", OfflineRecording, OfflineTraining)

_POLICY_FOLDER: Final = "_hindcast/policy/module"
"""Folder of the recorded policy: relative to the dataset, so that a dataset may be recorded at any location."""
_ONE_ITERATION: Final = {"iterations": 1}
_SECTIONS: Final = ("cluster", "runPolicy", "checkpoint", "revision", "suspend")
"""Sections of a spec that no option sets."""
_CALLBACKS_FIELD: Final = "callbacks"
"""The only field to which several options append entries."""
_SOURCE_OPTIONS: Final = ("input_", "input_filesystem", "input_filesystem_kwargs")
"""Options with an entry in `spec.input` for each value; the other options of the input apply to all entries."""


def is_online_only(algorithm: str) -> bool:
    """Return True if the algorithm learns from its own samples and cannot learn from data."""
    return can_learn_online(algorithm) and algorithm not in algorithms("OfflineTraining")


def can_learn_online(algorithm: str) -> bool:
    """Return True if the algorithm can learn from its own samples, without data; False for a custom algorithm."""
    return algorithm in algorithms("OfflineRecording")


def training_resource(algorithm: str, options: Options, name: str, stop: Fields | None) -> OfflineTraining:
    """Return the training that the options describe.

    Args:
        algorithm: name or import path. Without data, an algorithm that can learn online trains on its own samples
            (`input: [{sampler: {}}]`).
        options: name -> value as set by the user.
        name: `metadata.name`.
        stop: `spec.stop`; None is one iteration.

    Raises:
        SpecError: one line per problem.
    """
    is_online = is_online_only(algorithm)
    if is_online and has_recorded_input(options):
        raise SpecError(f"input_ does not apply to {algorithm}, which learns from its own samples.")
    if is_online and (
        offline_options := [name for name in options if "offline_evaluation" in name and options[name]]
    ):
        raise SpecError(
            f"{offline_options[0]} does not apply to {algorithm}, which learns from its own samples and is "
            "evaluated in its environment: use evaluation_interval."
        )
    check_batching(options.get("iter_batches_kwargs"))
    _check_runners(options)
    spec: Fields = {
        "algorithm": algorithm,
        "stop": stop or _ONE_ITERATION,
        **_option_fields(options, "training"),
    }
    if options.get("materialize_data"):
        _set_field(spec, "pipeline.residency", "Resident")
    # 0 requests the CPU; an unset option uses a GPU if there is one.
    if options.get("num_gpus_per_learner") == 0:
        _set_field(spec, "learners.device", "cpu")
    if spec.get("evaluation", {}).keys() == {"envsPerRunner"}:
        del spec["evaluation"]  # the number of environments does not request an evaluation
    spec[options_field(algorithm)] = algorithm_config(algorithm, options)
    adds_sampler = (
        not options.get("input_") and can_learn_online(algorithm) and options.get("env") is not None
    )
    input_options = {**options, "input_": "sampler"} if adds_sampler else options
    spec["input"] = [{"sampler": {}}] if is_online else input_fields(input_options, spec.get("input", {}))
    _check_environment(spec, is_required=any("sampler" in source for source in spec["input"]))
    # Trainings in files refuse an algorithm that only learns online, so its options are checked like a recording's.
    with option_names_in_errors(_set_names(options)):
        return _parse_resource(OfflineTraining, name, spec, "OfflineRecording" if is_online else None)


def recording_resource(
    algorithm: str, options: Options, name: str, policy: Fields | None, stop: Fields | None
) -> OfflineRecording:
    """Return the recording that the options describe.

    Args:
        algorithm: name or import path of the algorithm that trains the policy, unless `policy` is set.
        options: name -> value as set by the user.
        name: `metadata.name`.
        policy: `spec.policy`; None trains one.
        stop: `stop` of the policy's training; None is one iteration.

    Raises:
        SpecError: one line per problem.
    """
    spec: Fields = {"runners": {}, **_option_fields(options, "recording")}
    policy_fields, duration = spec.pop("policy", {}), _duration_field(options)
    if policy is None:
        config = algorithm_config(algorithm, options)
        train = {"algorithm": algorithm, "config": config, "stop": stop or _ONE_ITERATION}
        if duration.get("episodes"):
            train["evaluation"] = {"duration": duration["episodes"]}
        policy = {"train": {**train, **policy_fields.get("train", {})}}
    explore_field = {"explore": policy_fields["explore"]} if "explore" in policy_fields else {}
    spec |= {"policy": {**policy, **explore_field}, "duration": duration}
    # With 0 runners RLlib records in the calling process, which counts as one runner here.
    if spec["runners"].get("replicas") == 0:
        spec["runners"]["replicas"] = 1
    _set_field(spec, "output.path", output_path(options))
    if not has_packed_columns(options):
        spec["output"].pop("compressColumns", None)
    _check_environment(spec, is_required=True)
    with option_names_in_errors(_set_names(options)):
        return _parse_resource(OfflineRecording, name, spec)


def with_sections(
    resource: OfflineTraining | OfflineRecording, sections: Mapping[str, Any]
) -> OfflineTraining | OfflineRecording:
    """Return a resource with sections that no option sets.

    Args:
        resource: the resource.
        sections: sections of the spec, by their names in YAML.

    Raises:
        SpecError: options set a section, or a section is invalid.
    """
    allowed_names = [name for name in _SECTIONS if name in map(to_camel, type(resource.spec).model_fields)]
    for name in sections:
        if name not in allowed_names:
            raise SpecError(
                f"spec has {name!r}, expected some of {', '.join(allowed_names)}; options set the rest."
            )
    fields = resource.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
    model: Any = type(resource)
    new_resource: OfflineTraining | OfflineRecording = _parse_resource(
        model, resource.metadata.name, {**fields, **to_yaml_types(dict(sections))}
    )
    return new_resource


def has_packed_columns(options: Options) -> bool:
    """Return True if the output's format has packed columns: SampleBatch. (RLlib also packs columns of Parquet.)"""
    return _option_fields(options, "recording").get("output", {}).get("format") == "SampleBatch"


def algorithm_config(algorithm: str, options: Options) -> Fields:
    """Return the algorithm's own options, by their YAML names (`lambda` for `lambda_`).

    These are the options that are not in the table and are not left to the algorithm.
    """
    algorithm_options = {
        name: value
        for name, value in options.items()
        if not (is_in_table(algorithm, name) or is_unset(name, value))
    }
    return {to_camel(name.rstrip("_")): to_yaml_types(value) for name, value in algorithm_options.items()}


def model_section(options: Options) -> Fields:
    """Return the model section, by its YAML names."""
    model_options = {
        name: options.get(name)
        for name in OPTIONS_BY_NAME
        if OPTIONS_BY_NAME[name].training.startswith("model")
    }
    return dict(_option_fields(model_options, "training").get("model", {}))


def parse_section(model: type[M], data: Fields, path: tuple[str, ...]) -> M:
    """Parse a section of a resource, with the error messages of a whole resource.

    Args:
        model: the section's model.
        data: the section, by its YAML names.
        path: the keys that lead to the section.

    Raises:
        SpecError: one line per problem.
    """
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError.of(problems_of(error, model, data, path)) from error


def _parse_resource(model: type[R], name: str, spec: Fields, algorithm_kind: str | None = None) -> R:
    """Parse a resource.

    Args:
        model: the resource's model.
        name: `metadata.name`.
        spec: the spec, by its YAML names.
        algorithm_kind: see `check_algorithms`.

    Raises:
        SpecError: one line per problem.
    """
    data = {"apiVersion": API_VERSION, "kind": model.__name__, "metadata": {"name": name}, "spec": spec}
    resource: R | None = None
    problems: list[Problem] = []
    try:
        resource = parse_section(model, data, ())
    except SpecError as error:
        problems += error.problems
    problems += check_algorithms(data, resource, algorithm_kind=algorithm_kind)
    if resource is None or problems:
        raise SpecError.of(problems)
    return resource


def _set_names(options: Options) -> set[str]:
    """Return the names of the set options, and of the set fields of `model_config`."""
    model_config = options.get("model_config") or {}
    fields = model_config if isinstance(model_config, Mapping) else vars(model_config)
    names = {**options, **{f"model_config.{name}": value for name, value in fields.items()}}
    return {name for name, value in names.items() if value is not None}


def _option_fields(options: Options, kind: str) -> Fields:
    """Return the spec's fields that the options set in a "training" or "recording".

    If several options set a field, the last one in the table's order takes precedence.
    """
    spec: Fields = {}
    for name, option in OPTIONS_BY_NAME.items():
        field = option.training if kind == "training" else option.recording
        if options.get(name) is None or not field or name in _SOURCE_OPTIONS:
            continue
        try:
            value = to_yaml_types(CONVERTERS[name](options[name]) if name in CONVERTERS else options[name])
        except DataError as error:
            raise SpecError(str(error), field=(name,)) from error
        if value is not None:
            _set_field(spec, field, [*spec.get(field, ()), *value] if field == _CALLBACKS_FIELD else value)
    return spec


def _set_field(spec: Fields, field: str, value: Any) -> None:
    """Set a field by its path in the spec; a mapping is merged into an existing one."""
    *parents, name = field.split(".")
    for parent in parents:
        spec = spec.setdefault(parent, {})
    current = spec.get(name)
    spec[name] = {**current, **value} if isinstance(current, dict) and isinstance(value, dict) else value


def _check_runners(options: Options) -> None:
    """Check the values of the options of runners, which a training ignores.

    Raises:
        SpecError: one line per problem.
    """
    runner_options = {name: options.get(name) for name in ("num_env_runners", "num_cpus_per_env_runner")}
    parse_section(
        RunnersSpec, _option_fields(runner_options, "recording").get("runners", {}), ("spec", "runners")
    )


def _duration_field(options: Options) -> Fields:
    duration = options.get("evaluation_duration")
    return {str(options.get("evaluation_duration_unit") or "episodes"): 10 if duration is None else duration}


def _check_environment(spec: Fields, is_required: bool) -> None:
    """Refuse options of an environment without its id and, if it is required, a missing environment."""
    if "environment" in spec and "id" not in spec["environment"]:
        raise SpecError(
            "env is missing: name the environment that the other options apply to with .environment(env=...)."
        )
    if is_required and "environment" not in spec:
        raise SpecError("env is missing: name the environment to play in with .environment(env=...).")


@dataclass(frozen=True)
class BuildPlan:
    """The resources and options that `build_algo` builds from.

    Attributes:
        training: the training of the policy; None with an `output`, without `input_`, and with an algorithm that cannot
            learn online.
        recording: the recording of the output; None without an output.
        is_online: whether the algorithm only learns from its own samples.
        algorithm: name or import path of the algorithm.
        num_envs: number of environments that an online algorithm samples from in parallel.
        config: the algorithm's own options, by their YAML names.
        model: the policy network.
        initial_checkpoint: path of the checkpoint with the initial policy; None for new weights.
    """

    training: OfflineTraining | None
    recording: OfflineRecording | None
    is_online: bool
    algorithm: str
    num_envs: int
    config: Mapping[str, Any]
    model: ModelOptions
    initial_checkpoint: str | None


def make_build_plan(algorithm: str, options: Mapping[str, Any], name: str) -> BuildPlan:
    """Return the plan of a config's options.

    Raises:
        SpecError: one line per problem.
    """
    options = expand_options(algorithm, options)
    is_online = is_online_only(algorithm)
    recording = None
    if options.get("output"):
        recording = recording_resource(
            algorithm, options, name, {"checkpoint": {"path": _POLICY_FOLDER}}, None
        )
    training, num_envs = None, options.get("num_envs_per_env_runner")
    if can_learn_online(algorithm) or options.get("input_") or recording is None:
        training = _with_evaluation(
            training_resource(algorithm, options, name, None), to_yaml_types(num_envs)
        )
    return BuildPlan(
        training=training,
        recording=recording,
        is_online=is_online,
        algorithm=algorithm,
        num_envs=RunnersSpec().envs_per_runner if num_envs is None else num_envs,
        config=algorithm_config(algorithm, options),
        model=parse_section(ModelOptions, model_section(options), ("spec", "model")),
        initial_checkpoint=options.get("initial_checkpoint"),
    )


def _with_evaluation(resource: OfflineTraining, num_envs: Any) -> OfflineTraining:
    """Add an evaluation section if there is an environment and no such section, so that `evaluate()` can be called."""
    spec = resource.spec
    if spec.environment is None or spec.evaluation is not None:
        return resource
    evaluation = parse_section(EvaluationSpec, {"envsPerRunner": num_envs}, ("spec", "evaluation"))
    return resource.model_copy(update={"spec": spec.model_copy(update={"evaluation": evaluation})})
