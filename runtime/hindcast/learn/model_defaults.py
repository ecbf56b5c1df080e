"""The options of an algorithm's networks: the user's, completed with the algorithm's defaults."""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym

from hindcast.api.base import Model
from hindcast.api.model import LayerOptions, ModelOptions, ModelSpec
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import SpecError
from hindcast.formatting import as_yaml, describe_type
from hindcast.learn.algorithm import Algorithm
from hindcast.models.preprocessing import is_float_box
from hindcast.user_code import Misuse, calling

_ROLES: Final = ("policy", "critics")


def complete_model(
    algorithm: Algorithm, model: ModelOptions, action_space: gym.Space[Any] | None
) -> ModelSpec:
    """Complete the user's options with the algorithm's defaults, or with RLlib's if `preset` says so.

    What the user sets for all networks takes precedence over a default for one of them, and `logStdClip` over default
    bounds of log standard deviations. A complete model is returned as it is.

    Args:
        algorithm: algorithm that builds the networks.
        model: the user's options.
        action_space: space of the actions; None if it is not yet known.

    Raises:
        SpecError: a bound of log standard deviations does not fit the other one, which is a default.
    """
    if isinstance(model, ModelSpec):
        return model
    defaults = ModelOptions() if model.preset == "rllib" else _defaults(algorithm, action_space)
    user_fields, fields = _non_default_fields(model), _non_default_fields(defaults)
    if "log_std_clip" in user_fields:
        fields = {name: value for name, value in fields.items() if name not in ("log_std_min", "log_std_max")}
    for role in _ROLES:
        layers = {
            name: value
            for name, value in _non_default_fields(getattr(defaults, role)).items()
            if name not in user_fields
        }
        fields[role] = LayerOptions(**layers | _non_default_fields(getattr(model, role)))
    fields |= {name: value for name, value in user_fields.items() if name not in ("preset", *_ROLES)}
    low, high = ModelSpec.model_construct(**fields).log_std_range
    if low >= high:
        raise SpecError(
            f"logStdMin is {low:g} and logStdMax {high:g}, where one is the default of {type(algorithm).__name__}; "
            "set both.",
            field="model.logStdMin",
        )
    return ModelSpec(**fields)


def differences_from_rllib(
    algorithm: Algorithm, model: ModelOptions, action_space: gym.Space[Any]
) -> str | None:
    """Describe the defaults of the algorithm that differ from RLlib's and apply to this model; None without any.

    Args:
        algorithm: algorithm that builds the networks.
        model: the user's options.
        action_space: space of the actions.
    """
    values, rllib_values = (
        complete_model(algorithm, options, action_space).model_dump(by_alias=True)
        for options in (model, model.model_copy(update={"preset": "rllib"}))
    )
    differences = {name: value for name, value in values.items() if value != rllib_values[name]}
    for role in _ROLES:
        for name, value in (differences.pop(role, None) or {}).items():
            if value != rllib_values[role][name]:
                differences[f"{role}.{name}"] = value
    if not differences:
        return None
    texts = [f"{name} {as_yaml(value)}" for name, value in differences.items()]
    return (
        f"{type(algorithm).__name__} has defaults of its own where RLlib has another network: {', '.join(texts)}; "
        "preset RLlib restores RLlib's"
    )


def has_bounded_actions(action_space: gym.Space[Any] | None) -> bool:
    """Return True if there are continuous actions, and all of them have bounds."""
    floats = float_spaces(action_space)
    return bool(floats) and all(space.is_bounded() for space in floats)


def regression_policy(action_space: gym.Space[Any] | None) -> ModelOptions:
    """Return the policy of IQL's paper, for regressions on recorded actions that are weighted by their advantages.

    The mean is confined to the bounds: actions with large weights often lie at a bound, and a free mean would drift
    beyond it.
    """
    return ModelOptions(
        fcnet_activation="relu",
        distribution="boundedGaussian" if has_bounded_actions(action_space) else "auto",
        free_log_std=True,
        log_std_min=-5.0,
        log_std_max=2.0,
    )


def float_spaces(action_space: gym.Space[Any] | None) -> list[gym.spaces.Box]:
    """Return the spaces of continuous actions; none for an unknown space."""
    leaves = {} if action_space is None else flatten_space(action_space, Columns.ACTIONS)
    return [space for space in leaves.values() if is_float_box(space)]


def _defaults(algorithm: Algorithm, action_space: gym.Space[Any] | None) -> ModelOptions:
    with calling(f"{type(algorithm).__name__}.model_defaults", algorithm.model_defaults):
        defaults = algorithm.model_defaults(action_space)
        if not isinstance(defaults, ModelOptions):
            raise Misuse(f"returned {describe_type(defaults)}; it must return a ModelOptions.")
        return defaults


def _non_default_fields(options: Model) -> dict[str, Any]:
    """Return the fields whose values differ from the defaults of their class."""
    return {
        name: getattr(options, name)
        for name, field in type(options).model_fields.items()
        if getattr(options, name) != field.default
    }
