"""Reasons why a policy cannot start from the weights of another: kind, options or shapes differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hindcast.algorithms import REGISTRY
from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import Algorithm
from hindcast.models.flow_policy import OneStepPolicy
from hindcast.models.greedy_policy import GreedyPolicy
from hindcast.models.policy import Policy
from hindcast.models.return_policy import ReturnPolicy
from hindcast.models.rl_module import PolicyModule, RLModule

_AUTO_DISTRIBUTIONS: Final = ("categorical", "gaussian")
"""Distributions that `auto` stands for, one per kind of action space."""
_KINDS: Final[dict[type[RLModule], str]] = {
    PolicyModule: "an action distribution",
    GreedyPolicy: "action values",
    OneStepPolicy: "a one-step flow",
    ReturnPolicy: "a transformer",
}
"""Class of a policy's network -> what the network computes, for messages."""
_YAML_NAMES: Final = {
    "chunk": "actionChunk",
    "context": "contextLength",
    "heads": "numHeads",
    "layers": "numLayers",
    "max_timestep": "maxTimestep",
    "quantiles": "numQuantiles",
    "aggregation": "qAggregation",
    "members": "numCritics",
    "samples": "actionSamples",
    "return_scale": "returnScale",
    "size": "embedSize",
    "target_return": "targetReturn",
}
"""Module option -> name of the algorithm's option in YAML, where the two differ."""


def kind_mismatch(policy: Policy, saved: Policy, algorithm: Algorithm, trained_by: str | None) -> str | None:
    """Describe why the algorithm cannot build the saved policy's kind with any `model`, or return None.

    Args:
        policy: policy that is to be trained.
        saved: policy that it should start from.
        algorithm: algorithm that trains `policy`.
        trained_by: name of the algorithm that trained `saved`; None if unknown.
    """
    module_class, saved_class = type(policy.module), type(saved.module)
    has_custom_module = any(candidate.module.model_config.module_class for candidate in (policy, saved))
    # Different custom modules are reported by `option_mismatch`, because `model.moduleClass` can select them.
    if module_class is saved_class or (has_custom_module and not algorithm.has_own_policy):
        return None
    origin = "" if trained_by is None else f" that {trained_by} trained"
    saved_kind, kind = (_KINDS.get(cls, cls.__name__) for cls in (saved_class, module_class))
    return (
        f"holds {saved_kind}{origin}, and {type(algorithm).__name__} trains {kind}: start from a checkpoint of "
        f"{_list_algorithms(module_class, algorithm)}, or omit initialCheckpoint"
    )


def option_mismatch(policy: Policy, saved: Policy) -> str | None:
    """Describe the option that gives weights of equal shapes another meaning, or return None if all are equal."""
    meaning, saved_meaning = _meaning_options(policy), _meaning_options(saved)
    # Without convolutions (4-dimensional weights), their activation has no effect.
    if not any(weights.dim() == 4 for weights in policy.module.state_dict().values()):
        del meaning["convActivation"]
    return (
        _describe_difference("model", meaning, saved_meaning)
        or _describe_difference("config", _module_options(policy), _module_options(saved))
        or _describe_difference("input.prepare", _missing_rules(policy), _missing_rules(saved))
    )


def shape_mismatch(policy: Policy, saved: Policy) -> str | None:
    """Describe why the saved weights have other shapes, or return None if neither model sections nor spaces differ."""
    shape_options = [_shape_options(candidate.module.model_config) for candidate in (policy, saved)]
    if mismatch := _describe_difference("model", *shape_options):
        return mismatch
    for attribute in ("observation_space", "action_space"):
        space, saved_space = getattr(policy, attribute), getattr(saved, attribute)
        if space != saved_space:
            name = attribute.replace("_", " ")
            return f"is for the {name} {saved_space}, this training's is {space}; they must be the same"
    return None


def _list_algorithms(policy_class: type[RLModule], algorithm: Algorithm) -> str:
    """Return the names of the algorithms that build this kind of policy, joined by commas and "or"."""
    algorithm_class = type(algorithm)
    if policy_class is PolicyModule:
        names = [name for name, candidate in REGISTRY.items() if not candidate.has_own_policy]
    else:
        names = [
            name
            for name, candidate in REGISTRY.items()
            if issubclass(candidate, algorithm_class) or issubclass(algorithm_class, candidate)
        ]
    *first_names, last_name = names or [algorithm_class.__name__]
    return f"{', '.join(first_names)} or {last_name}" if first_names else last_name


def _describe_difference(
    section: str, options: Mapping[str, Any], saved_options: Mapping[str, Any]
) -> str | None:
    """Describe the first option of a section that differs, or return None if all are equal."""
    for option, value in options.items():
        if saved_options.get(option) != value:
            hint = " (each algorithm has its own defaults for options left out)" if section == "model" else ""
            values = (saved_options.get(option), value)
            if section == "model":
                values = tuple(ModelSpec.in_yaml(option, value) for value in values)
            return (
                f"has {section}.{option} {values[0]}, this training has {values[1]}; the {section} sections must be "
                f"the same{hint}"
            )
    return None


def _meaning_options(policy: Policy) -> dict[str, Any]:
    """Return the options of `model` that change the meaning of weights, but not their shapes."""
    preprocessing, model = policy.preprocessing.to_json(), policy.module.model_config
    return {
        "observationFilter": preprocessing["observationFilter"],
        "frameStack": preprocessing["frameStack"],
        "fcnetActivation": model.fcnet_activation,
        "convActivation": model.conv_activation,
        "convPadding": model.conv_padding,
        "moduleClass": model.module_class,
        "moduleOptions": model.module_options if model.module_class else {},
        "distribution": "auto" if model.distribution in _AUTO_DISTRIBUTIONS else model.distribution,
    }


def _missing_rules(policy: Policy) -> dict[str, Any]:
    """Return the options that say what replaces missing values."""
    preprocessing = policy.preprocessing.to_json()
    return {
        name: preprocessing.get(name, default)
        for name, default in (("missing", {}), ("missingIndicators", False))
    }


def _module_options(policy: Policy) -> dict[str, Any]:
    """Return the options that the algorithm passed to its own kind of policy, by YAML name."""
    model = policy.module.model_config
    if model.module_class:
        return {}
    return {_YAML_NAMES.get(name, name): value for name, value in model.module_options.items()}


def _shape_options(model: ModelSpec) -> dict[str, Any]:
    """Return the options of `model` that change the shapes of weights."""
    return {
        "fcnetHiddens": model.fcnet_hiddens,
        "headFcnetHiddens": model.head_fcnet_hiddens,
        "convFilters": model.conv_filters,
        "layerNorm": model.layer_norm,
        "recurrent": model.recurrent,
        "cellSize": model.cell_size,
        "freeLogStd": model.free_log_std,
        "vfShareLayers": model.vf_share_layers,
    }
