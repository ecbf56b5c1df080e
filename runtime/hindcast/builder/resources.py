"""From the builder's options to resources, the same models as from YAML, and to the plan of what a config builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from hindcast.api import ModelSpec, OfflineRecording, OfflineTraining
from hindcast.api.base import API_VERSION
from hindcast.api.checks import check_algorithm
from hindcast.api.documents import Problem
from hindcast.api.evaluation import EvaluationSpec
from hindcast.api.loading import check_algorithms
from hindcast.api.options import algorithms, options_field
from hindcast.api.recording import RunnersSpec
from hindcast.api.sentences import problems_of, sentence
from hindcast.builder.composite_options import expand_options
from hindcast.builder.option_names import is_unset
from hindcast.builder.option_values import (
    CONVERTERS,
    check_batching,
    has_recorded_input,
    input_fields,
    output_path,
    to_plain,
)
from hindcast.builder.options import OPTIONS_BY_NAME, is_in_table
from hindcast.errors import SpecError

Options = Mapping[str, Any]
Fields = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

_POLICY: Final = "_hindcast/policy/module"
"""Inside the dataset, whose own location is not part of its identity."""
_ONE_ITERATION: Final = {"iterations": 1}
_SEVERAL: Final = "callbacks"
"""The field whose entries several options give."""
_OF_SOURCES: Final = ("input_", "input_filesystem")
"""Of these `spec.input` is a list; the other options of the input go to each of its entries."""


def is_online_only(algorithm: str) -> bool:
    """Whether the algorithm learns from its own samples only."""
    return can_learn_online(algorithm) and algorithm not in algorithms("OfflineTraining")


def can_learn_online(algorithm: str) -> bool:
    """Whether the algorithm learns from its own samples if no data are given."""
    return algorithm in algorithms("OfflineRecording")


def training_resource(algorithm: str, options: Options, name: str, stop: Fields | None) -> OfflineTraining:
    """The training that the options describe.

    Args:
        algorithm: one that plays trains on its own samples (`input: [{sampler: {}}]`) if no data are given.
        options: name -> value as given.
        name: `metadata.name`.
        stop: `spec.stop`; None is one iteration.

    Raises:
        SpecError: one line per problem.
    """
    online = is_online_only(algorithm)
    if online and has_recorded_input(options):
        raise SpecError(f"input_ does not apply to {algorithm}, which learns from its own samples.")
    if online and (judged := [name for name in options if "offline_evaluation" in name and options[name]]):
        raise SpecError(
            f"{judged[0]} does not apply to {algorithm}, which learns from its own samples and is evaluated in its "
            "environment: use evaluation_interval."
        )
    check_batching(options.get("iter_batches_kwargs"))
    _check_runners(options)
    spec: Fields = {"algorithm": algorithm, "stop": stop or _ONE_ITERATION, **_fields(options, "training")}
    if options.get("materialize_data"):
        _put(spec, "pipeline.residency", "Resident")
    if options.get("num_gpus_per_learner") == 0:
        _put(spec, "learners.device", "cpu")
    if spec.get("evaluation", {}).keys() == {"envsPerRunner"}:
        del spec["evaluation"]  # how many environments, should an evaluation be asked for
    spec[options_field(algorithm)] = algorithm_config(algorithm, options)
    samples = not options.get("input_") and can_learn_online(algorithm) and options.get("env") is not None
    given = {**options, "input_": "sampler"} if samples else options
    spec["input"] = [{"sampler": {}}] if online else input_fields(given, spec.get("input", {}))
    _need_environment(spec, any("sampler" in source for source in spec["input"]))
    problems = check_algorithm("OfflineRecording", spec, ("spec",)) if online else None
    return _checked(OfflineTraining, name, spec, problems)


def recording_resource(
    algorithm: str, options: Options, name: str, policy: Fields | None, stop: Fields | None
) -> OfflineRecording:
    """The recording that the options describe.

    Args:
        algorithm: trains the policy, where `policy` does not say another.
        options: name -> value as given.
        name: `metadata.name`.
        policy: `spec.policy`; None trains one.
        stop: of the policy's training; None is one iteration.

    Raises:
        SpecError: one line per problem.
    """
    spec: Fields = {"runners": {}, **_fields(options, "recording")}
    given, duration = spec.pop("policy", {}), _duration(options)
    if policy is None:
        config = algorithm_config(algorithm, options)
        train = {"algorithm": algorithm, "config": config, "stop": stop or _ONE_ITERATION}
        if duration.get("episodes"):
            train["evaluation"] = {"duration": duration["episodes"]}
        policy = {"train": {**train, **given.get("train", {})}}
    explore = {"explore": given["explore"]} if "explore" in given else {}
    spec |= {"policy": {**policy, **explore}, "duration": duration}
    if spec["runners"].get("replicas") == 0:
        spec["runners"]["replicas"] = 1
    _put(spec, "output.path", output_path(options))
    if not has_packed_columns(options):
        spec["output"].pop("compressColumns", None)
    _need_environment(spec, True)
    return _checked(OfflineRecording, name, spec)


def has_packed_columns(options: Options) -> bool:
    """Whether the output's format has packed columns: SampleBatch. (RLlib packs those of Parquet, too.)"""
    return _fields(options, "recording").get("output", {}).get("format") == "SampleBatch"


def algorithm_config(algorithm: str, options: Options) -> Fields:
    """The algorithm's own options, all others being in the table, by their YAML names: `lambda_` is `lambda`."""
    own = {
        name: value
        for name, value in options.items()
        if not (is_in_table(algorithm, name) or is_unset(name, value))
    }
    return {to_camel(name.rstrip("_")): to_plain(value) for name, value in own.items()}


def model_section(options: Options) -> Fields:
    """The model section, by its YAML names."""
    of_model = {
        name: options.get(name)
        for name in OPTIONS_BY_NAME
        if OPTIONS_BY_NAME[name].training.startswith("model")
    }
    return dict(_fields(of_model, "training").get("model", {}))


def parse_section(model: type[M], data: Fields, at: tuple[str, ...]) -> M:
    """A part of a resource on its own, with the same sentences.

    Raises:
        SpecError: one line per problem.
    """
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        lines = [sentence(problem) for problem in problems_of(error, model, data, at)]
        raise SpecError("\n".join(lines)) from error


def _checked(model: type[M], name: str, spec: Fields, problems: list[Problem] | None = None) -> M:
    """The resource; `problems` are those with its algorithm, where its kind does not say what to check."""
    data = {"apiVersion": API_VERSION, "kind": model.__name__, "metadata": {"name": name}, "spec": spec}
    lines = [sentence(each) for each in (check_algorithms(data) if problems is None else problems)]
    try:
        resource = parse_section(model, data, ())
    except SpecError as error:
        raise SpecError("\n".join([str(error), *lines])) from error
    if lines:
        raise SpecError("\n".join(lines))
    return resource


def _fields(options: Options, kind: str) -> Fields:
    """Every option that has a field in this kind of resource, in the table's order: the last one counts."""
    spec: Fields = {}
    for name, option in OPTIONS_BY_NAME.items():
        field = option.training if kind == "training" else option.recording
        if options.get(name) is None or not field or name in _OF_SOURCES:
            continue
        value = to_plain(CONVERTERS[name](options[name]) if name in CONVERTERS else options[name])
        if value is not None:
            _put(spec, field, [*spec.get(field, ()), *value] if field == _SEVERAL else value)
    return spec


def _put(spec: Fields, field: str, value: Any) -> None:
    *parents, last = field.split(".")
    for parent in parents:
        spec = spec.setdefault(parent, {})
    here = spec.get(last)
    spec[last] = {**here, **value} if isinstance(here, dict) and isinstance(value, dict) else value


def _check_runners(options: Options) -> None:
    """A training has no runners, but a wrong number of them is still a mistake."""
    given = {name: options.get(name) for name in ("num_env_runners", "num_cpus_per_env_runner")}
    parse_section(RunnersSpec, _fields(given, "recording").get("runners", {}), ("spec", "runners"))


def _duration(options: Options) -> Fields:
    given = options.get("evaluation_duration")
    return {str(options.get("evaluation_duration_unit") or "episodes"): 10 if given is None else given}


def _need_environment(spec: Fields, needed: bool) -> None:
    if "environment" in spec and "id" not in spec["environment"]:
        raise SpecError(
            "env is missing: name the environment that the other options apply to with .environment(env=...)."
        )
    if needed and "environment" not in spec:
        raise SpecError("env is missing: name the environment to play in with .environment(env=...).")


@dataclass(frozen=True)
class BuildPlan:
    """What to build.

    Attributes:
        training: trains the policy; of an algorithm that learns online, from samples. None without data.
        recording: what `evaluate()` adds to a dataset; None without an output.
        online: the algorithm learns in its environment.
        width: environments that it samples from side by side.
    """

    training: OfflineTraining | None
    recording: OfflineRecording | None
    is_online: bool
    algorithm: str
    num_envs: int
    config: Mapping[str, Any]
    model: ModelSpec
    initial_checkpoint: str | None


def make_build_plan(algorithm: str, options: Mapping[str, Any], name: str) -> BuildPlan:
    """What a config's options build.

    Raises:
        SpecError: one line per problem.
    """
    options = expand_options(algorithm, options)
    online = is_online_only(algorithm)
    recorded = None
    if options.get("output"):
        recorded = recording_resource(algorithm, options, name, {"checkpoint": {"path": _POLICY}}, None)
    trained, width = None, options.get("num_envs_per_env_runner")
    if can_learn_online(algorithm) or options.get("input_") or recorded is None:
        trained = _evaluated(training_resource(algorithm, options, name, None), to_plain(width))
    return BuildPlan(
        training=trained,
        recording=recorded,
        is_online=online,
        algorithm=algorithm,
        num_envs=RunnersSpec().envs_per_runner if width is None else width,
        config=algorithm_config(algorithm, options),
        model=parse_section(ModelSpec, model_section(options), ("spec", "model")),
        initial_checkpoint=options.get("initial_checkpoint"),
    )


def _evaluated(resource: OfflineTraining, width: Any) -> OfflineTraining:
    """Adds an evaluation section if there is an environment, so that `evaluate()` can be called."""
    spec = resource.spec
    if spec.environment is None or spec.evaluation is not None:
        return resource
    evaluation = parse_section(EvaluationSpec, {"envsPerRunner": width}, ("spec", "evaluation"))
    return resource.model_copy(update={"spec": spec.model_copy(update={"evaluation": evaluation})})
