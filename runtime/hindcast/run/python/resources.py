"""From the builder's options to the resources: the same models that YAML makes, checked by the same code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.options import algorithms, check_algorithm, is_custom
from hindcast.api.sentences import problems_of, sentence
from hindcast.errors import SpecError
from hindcast.run.python.options import OPTIONS, Option
from hindcast.run.python.values import CONVERTERS, located, plain, sources

Options = Mapping[str, Any]
Fields = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

ONE_ITERATION: Final = {"iterations": 1}
_READING: Final = (
    "input_",
    "input_read_schema",
    "input_read_method",
    "input_read_method_kwargs",
    "input_read_sample_batches",
    "input_compress_columns",
    "actions_in_input_normalized",
    "ignore_final_observation",
    "input_filesystem",
)
_WRITING: Final = ("output", "output_filesystem")
_RESIDENCY: Final = ("materialize_data", "materialize_mapped_data")
_LENGTH: Final = ("evaluation_duration", "evaluation_duration_unit")


def learns_online(algorithm: str) -> bool:
    """Whether the algorithm samples its own data."""
    return algorithm in algorithms("OfflineRecording")


def own_options(options: Options) -> Options:
    """The options that are the algorithm's own, all others being in the table."""
    return {name: value for name, value in options.items() if option_named(name) is None}


def option_named(name: str) -> Option | None:
    """The table's row for an option; the same name means the same in all methods."""
    return next((options[name] for options in OPTIONS.values() if name in options), None)


def training(algorithm: str, options: Options, name: str, stop: Fields | None) -> OfflineTraining:
    """The training that the options describe.

    Args:
        algorithm: one that learns online trains on samples of its own (`input: [{sampler: {}}]`).
        options: name -> value as given.
        name: `metadata.name`.
        stop: `spec.stop`; None is one iteration.

    Raises:
        SpecError: a line for every problem.
    """
    online = learns_online(algorithm)
    if online and options.get("input_"):
        raise SpecError(f"input_ does not apply to {algorithm}, which learns from samples of its own.")
    spec: Fields = {"algorithm": algorithm, "stop": stop or ONE_ITERATION}
    spec["input"] = [{"sampler": {}}] if online else sources(options) if options.get("input_") else []
    _fill(spec, options, "training")
    if residency := [options[name] for name in _RESIDENCY if options.get(name) is not None]:
        _put(spec, "pipeline.residency", "Resident" if any(residency) else "Streaming")
    if options.get("num_gpus_per_learner") == 0:
        _put(spec, "learners.device", "cpu")
    per_runner = options.get("num_envs_per_env_runner")
    if "evaluation" in spec and per_runner is not None:
        _put(spec, "evaluation.envsPerRunner", per_runner)
    config = algorithm_config(options)
    spec["customConfig" if is_custom(algorithm) else "config"] = config
    if not spec["input"]:
        raise SpecError("input_ is missing: .offline_data(input_=...) names the data to train on.")
    _need_environment(spec, online)
    kind = "OfflineRecording" if online else "OfflineTraining"
    problems = check_algorithm(kind, algorithm, config, ("spec",))
    return _checked(OfflineTraining, "OfflineTraining", name, spec, problems)


def recording(
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
        SpecError: a line for every problem.
    """
    spec: Fields = {"runners": {}}
    _fill(spec, options, "recording")
    explore = spec.pop("policy", {}).pop("explore", None)
    problems = []
    if policy is None:
        train = {"algorithm": algorithm, "config": algorithm_config(options), "stop": stop or ONE_ITERATION}
        if model := model_section(options):
            train["model"] = model
        if _duration(options).get("episodes"):
            train["evaluation"] = {"duration": _duration(options)["episodes"]}
        policy = {"train": train}
        problems = check_algorithm(
            "OfflineRecording", algorithm, train["config"], ("spec", "policy", "train")
        )
    spec["policy"] = policy if explore is None else {**policy, "explore": explore}
    spec["duration"] = _duration(options)
    if spec["runners"].get("replicas") == 0:
        spec["runners"]["replicas"] = 1
    if not options.get("output"):
        raise SpecError("output is missing: .offline_data(output=...) names the folder of the dataset.")
    _put(spec, "output.path", output_path(options))
    if spec["output"].get("format") != "SampleBatch":  # the reference packs columns of Parquet too
        spec["output"].pop("compressColumns", None)
    _need_environment(spec, True)
    return _checked(OfflineRecording, "OfflineRecording", name, spec, problems)


def output_path(options: Options) -> str:
    """`spec.output.path`."""
    return located(options["output"], options.get("output_filesystem"))


def section(model: type[M], data: Fields, at: tuple[str, ...]) -> M:
    """A part of a resource on its own, with the same sentences.

    Raises:
        SpecError: a line for every problem.
    """
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        lines = [sentence(problem) for problem in problems_of(error, model, data, at)]
        raise SpecError("\n".join(lines)) from error


def _checked(model: type[M], kind: str, name: str, spec: Fields, problems: list[Any]) -> M:
    data = {"apiVersion": "hindcast.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    lines = [sentence(problem) for problem in problems]
    try:
        resource = section(model, data, ())
    except SpecError as error:
        raise SpecError("\n".join([str(error), *lines])) from error
    if lines:
        raise SpecError("\n".join(lines))
    return resource


def _fill(spec: Fields, options: Options, kind: str) -> None:
    """Put every option that has a field of its own there, in the table's order: the last one counts."""
    apart = (*_READING, *_WRITING, *_RESIDENCY, *(_LENGTH if kind == "recording" else ()))
    wanted = {name: option for given in OPTIONS.values() for name, option in given.items()}
    for name, option in wanted.items():
        field = option.training if kind == "training" else option.recording
        if options.get(name) is None or not field or name in apart or field.startswith("policy.train"):
            continue
        if name == "num_envs_per_env_runner" and kind == "training":
            continue
        value = plain(CONVERTERS[name](options[name]) if name in CONVERTERS else options[name])
        if value is not None:
            _put(spec, field, value)


def _put(spec: Fields, field: str, value: Any) -> None:
    *parents, last = field.split(".")
    for parent in parents:
        spec = spec.setdefault(parent, {})
    here = spec.get(last)
    spec[last] = {**here, **value} if isinstance(here, dict) and isinstance(value, dict) else value


def algorithm_config(options: Options) -> Fields:
    """The algorithm's own options by their YAML names; Python's `lambda_` is `lambda`."""
    return {to_camel(name.rstrip("_")): plain(value) for name, value in own_options(options).items()}


def model_section(options: Options) -> Fields:
    """The model section, by its YAML names."""
    spec: Fields = {}
    _fill(spec, {name: options.get(name) for name in ("model_config", "observation_filter")}, "training")
    return dict(spec.get("model", {}))


def _duration(options: Options) -> Fields:
    given = options.get("evaluation_duration")
    return {str(options.get("evaluation_duration_unit") or "episodes"): 10 if given is None else given}


def _need_environment(spec: Fields, needed: bool) -> None:
    if "environment" in spec and "id" not in spec["environment"]:
        raise SpecError(
            "env is missing: .environment(env=...) names the environment that the other options are of."
        )
    if needed and "environment" not in spec:
        raise SpecError("env is missing: .environment(env=...) names the environment to play in.")
