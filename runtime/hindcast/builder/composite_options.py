"""Options of RLlib that say several of ours at once: `input_evaluation`, and dictionaries of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from hindcast.api.evaluation import EstimateName
from hindcast.builder.option_names import find_schema, turns_off_default
from hindcast.builder.option_values import estimate_names, has_recorded_input, input_entries, require_mapping
from hindcast.errors import SpecError

Options = Mapping[str, Any]

_SIMULATION: Final = "simulation"
_JUDGES: Final = ("offline_evaluation_held_out", "offline_evaluation_input")
_HELD_OUT: Final = 0.1
_BUFFERS: Final = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")


def expand_options(algorithm: str | None, options: Options) -> dict[str, Any]:
    """The options, with those that say several of ours replaced by these.

    Args:
        options: name -> value as given. What they say directly takes precedence.

    Raises:
        SpecError: a value that nothing here corresponds to.
    """
    given = {
        name: value
        for name, value in options.items()
        if value is not None or turns_off_default(algorithm, name, value)
    }
    given |= _evaluation_environment(given)
    judging = _input_evaluation(given.pop("input_evaluation", None), given)
    return {**judging, **_priorities(algorithm, given), **given}


def _input_evaluation(value: Any, given: Options) -> dict[str, Any]:
    """RLlib's option of 2019: estimates of the input in each iteration, or an evaluation in the environment."""
    if not value:
        return {}
    named = estimate_names("input_evaluation", value)
    allowed = (_SIMULATION, *get_args(EstimateName))
    for each in named:
        if each not in allowed:
            raise SpecError(
                f"input_evaluation contains {each!r}, expected some of {', '.join(map(repr, allowed))}."
            )
    options: dict[str, Any] = {"evaluation_interval": 1} if _SIMULATION in named else {}
    if computed := [each for each in named if each != _SIMULATION]:
        options |= {"off_policy_estimation_methods": computed, "offline_evaluation_interval": 1}
        if not any(given.get(judge) for judge in _JUDGES):
            options["offline_evaluation_held_out"] = _HELD_OUT
    return options


def _priorities(algorithm: str | None, given: Options) -> dict[str, Any]:
    """How the replay buffer draws, which is the algorithm's to say here."""
    buffer = given.get("replay_buffer_config")
    if algorithm is None or not isinstance(buffer, Mapping):
        return {}
    kind = buffer.get("type", _BUFFERS[0])
    name = (kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))).rpartition(".")[2]
    if name not in _BUFFERS:
        raise SpecError(
            f"replay_buffer_config: type is {name!r}, expected {' or '.join(map(repr, _BUFFERS))}."
        )
    exponents = {key: buffer[key] for key in ("alpha", "beta") if buffer.get(key) is not None}
    if name == _BUFFERS[0]:
        if exponents:
            raise SpecError(
                f"replay_buffer_config: {next(iter(exponents))} is an option of {_BUFFERS[1]}, but its type is {name}."
            )
        return {}
    if not find_schema(algorithm, "prioritized_replay"):
        raise SpecError(
            f"replay_buffer_config: {algorithm} draws uniformly, without priorities: its type must be {_BUFFERS[0]!r}, "
            "without alpha and beta."
        )
    return {"prioritized_replay": True} | {f"prioritized_replay_{key}": exponents[key] for key in exponents}


def _evaluation_environment(given: Options) -> dict[str, Any]:
    """The environment of `evaluation_config`, where evaluations alone play in it."""
    overrides = given.get("evaluation_config")
    if not isinstance(overrides, Mapping):
        return {}
    own = {name: overrides[name] for name in ("env", "env_config") if overrides.get(name) is not None}
    if not own:
        return {}
    if given.get("output") or not has_recorded_input(given) or "sampler" in input_entries(given):
        raise SpecError(
            f"evaluation_config contains {next(iter(own))!r}, but the policy also plays in this environment to learn "
            "or to record: evaluate elsewhere with custom_evaluation_function."
        )
    rest = {name: value for name, value in overrides.items() if name not in own}
    if "env_config" in own:
        own["env_config"] = {
            **require_mapping("env_config", given.get("env_config", {})),
            **require_mapping("evaluation_config: env_config", own["env_config"]),
        }
    return {**own, "evaluation_config": rest}
