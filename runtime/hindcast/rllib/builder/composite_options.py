"""Expand RLlib's options that stand for several of Hindcast's: `input_evaluation`, and dictionaries of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from hindcast.api.evaluation import EstimateName
from hindcast.errors import SpecError
from hindcast.rllib.builder.option_names import find_schema, turns_off_default
from hindcast.rllib.builder.option_values import (
    WRITE_ARGUMENTS_WITHOUT_EFFECT,
    check_names,
    estimate_names,
    has_recorded_input,
    input_entries,
    require_mapping,
)
from hindcast.rllib.builder.options import check_types

Options = Mapping[str, Any]

_SIMULATION: Final = "simulation"
_OFFLINE_EVALUATION_DATA: Final = ("offline_evaluation_held_out", "offline_evaluation_input")
_DEFAULT_HELD_OUT: Final = 0.1
_WRITE_ARGUMENTS: Final = {
    "compression": "output_compression",
    "max_rows_per_file": "output_max_rows_per_file",
    "num_rows_per_file": "output_max_rows_per_file",
    "filesystem": "output_filesystem",
    "mode": "output_on_existing",
}
"""Argument of Ray Data's write methods -> the option that does the same."""
_SAVE_MODES: Final = {"append": "Resume", "overwrite": "Replace", "error": "Fail"}
"""Ray's save mode -> value of `output_on_existing`."""
_UNIFORM_BUFFER: Final = "EpisodeReplayBuffer"
_PRIORITIZED_BUFFER: Final = "PrioritizedEpisodeReplayBuffer"
_BUFFER_CLASSES: Final = (_UNIFORM_BUFFER, _PRIORITIZED_BUFFER)


def expand_options(algorithm: str | None, options: Options) -> dict[str, Any]:
    """Return the options, with each composite option replaced by the options that it stands for.

    Options that are None are dropped, except if None turns off a default.

    Args:
        algorithm: name or import path of the algorithm; None if the config has none.
        options: name -> value as set by the user. Options that the user sets directly take precedence over those that
            `input_evaluation` and `replay_buffer_config` stand for; `env` and `env_config` in
            `evaluation_config` take precedence over `env` and `env_config`.

    Raises:
        SpecError: a value has no equivalent.
    """
    set_options = {
        name: value
        for name, value in options.items()
        if value is not None or turns_off_default(algorithm, name, value)
    }
    check_types(set_options)
    if set_options.get("materialize_data") and set_options.get("materialize_mapped_data"):
        raise SpecError(
            "materialize_data and materialize_mapped_data are both True: set one of them; both keep the data in memory."
        )
    set_options |= _expand_evaluation_environment(set_options)
    set_options = {**_expand_write_method(set_options), **set_options}
    evaluation = _expand_input_evaluation(set_options.pop("input_evaluation", None), set_options)
    return {**evaluation, **_expand_replay_buffer_type(algorithm, set_options), **set_options}


def _expand_input_evaluation(value: Any, other_options: Options) -> dict[str, Any]:
    """Return the options that `input_evaluation` of RLlib's version of 2019 stands for.

    "simulation" requests an evaluation in the environment, the names of estimates request an offline evaluation; the
    value may contain both.
    """
    if not value:
        return {}
    names = estimate_names("input_evaluation", value)
    allowed_names = (_SIMULATION, *get_args(EstimateName))
    for name in names:
        if name not in allowed_names:
            raise SpecError(
                f"input_evaluation contains {name!r}, expected some of {', '.join(map(repr, allowed_names))}."
            )
    options: dict[str, Any] = {"evaluation_interval": 1} if _SIMULATION in names else {}
    if estimators := [name for name in names if name != _SIMULATION]:
        options |= {"off_policy_estimation_methods": estimators, "offline_evaluation_interval": 1}
        if not any(other_options.get(source) for source in _OFFLINE_EVALUATION_DATA):
            options["offline_evaluation_held_out"] = _DEFAULT_HELD_OUT
    return options


def _expand_replay_buffer_type(algorithm: str | None, options: Options) -> dict[str, Any]:
    """Return the algorithm's options for prioritised replay, from the type of the replay buffer, alpha and beta."""
    buffer = options.get("replay_buffer_config")
    if algorithm is None or not isinstance(buffer, Mapping):
        return {}
    buffer_class = buffer.get("type", _UNIFORM_BUFFER)
    name = (
        buffer_class
        if isinstance(buffer_class, str)
        else getattr(buffer_class, "__name__", repr(buffer_class))
    ).rpartition(".")[2]
    if name not in _BUFFER_CLASSES:
        raise SpecError(
            f"replay_buffer_config: type is {name!r}, expected {' or '.join(map(repr, _BUFFER_CLASSES))}."
        )
    exponents = {key: buffer[key] for key in ("alpha", "beta") if buffer.get(key) is not None}
    if name == _UNIFORM_BUFFER:
        if exponents:
            raise SpecError(
                f"replay_buffer_config: {next(iter(exponents))} is an option of {_PRIORITIZED_BUFFER}, but type is "
                f"{name!r}: set type to {_PRIORITIZED_BUFFER!r}, or leave alpha and beta out."
            )
        return {}
    if not find_schema(algorithm, "prioritized_replay"):
        raise SpecError(
            f"replay_buffer_config: {algorithm} draws uniformly, without priorities: set type to "
            f"{_UNIFORM_BUFFER!r}, and leave out alpha and beta."
        )
    return {"prioritized_replay": True} | {f"prioritized_replay_{key}": exponents[key] for key in exponents}


def _expand_write_method(options: Options) -> dict[str, Any]:
    """Return the options of the output that the arguments of Ray Data's write method stand for.

    Raises:
        SpecError: an argument has no equivalent.
    """
    option = "output_write_method_kwargs"
    if not isinstance(options.get(option), Mapping):
        return {}
    arguments = {name: value for name, value in options[option].items() if value is not None}
    check_names(option, arguments, (*_WRITE_ARGUMENTS, *WRITE_ARGUMENTS_WITHOUT_EFFECT))
    if "mode" in arguments:
        mode = str(getattr(arguments["mode"], "value", arguments["mode"]))  # a SaveMode of Ray, or its value
        arguments["mode"] = _SAVE_MODES.get(mode, mode)
    return {_WRITE_ARGUMENTS[name]: value for name, value in arguments.items() if name in _WRITE_ARGUMENTS}


def _expand_evaluation_environment(options: Options) -> dict[str, Any]:
    """Return `env`, `env_config` and the remaining `evaluation_config` if that names an environment, else nothing.

    Raises:
        SpecError: the policy also plays in its environment to learn or to be recorded.
    """
    overrides = options.get("evaluation_config")
    if not isinstance(overrides, Mapping):
        return {}
    environment = {name: overrides[name] for name in ("env", "env_config") if overrides.get(name) is not None}
    if not environment:
        return {}
    if options.get("output") or not has_recorded_input(options) or "sampler" in input_entries(options):
        raise SpecError(
            f"evaluation_config contains {next(iter(environment))!r}, but the policy also plays in this environment "
            "to learn or to record: to evaluate in another environment, use custom_evaluation_function."
        )
    remaining_overrides = {name: value for name, value in overrides.items() if name not in environment}
    if "env_config" in environment:
        environment["env_config"] = {
            **require_mapping("env_config", options.get("env_config", {})),
            **require_mapping("evaluation_config: env_config", environment["env_config"]),
        }
    return {**environment, "evaluation_config": remaining_overrides}
