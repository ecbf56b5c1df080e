"""Determine the effect of setting an option of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hindcast import AlgorithmConfig
from hindcast.errors import UserError
from hindcast.rllib.builder.options import TYPES
from hindcast.run.ineffective_fields import find_ineffective_fields, find_ineffective_options

_ONLINE_SECTIONS = ("algorithm", "config", "environment", "model", "seed", "evaluation", "callbacks")


def effective_options(config: AlgorithmConfig) -> dict[str, Any]:
    """Return all options that `build_algo` reads, without the fields that have no effect."""
    plan = config.plan()
    options: dict[str, Any] = {"start": plan.initial_checkpoint}
    if plan.is_online:
        options["width"] = plan.num_envs
    for resource in (plan.training, plan.recording):
        if resource is None:
            continue
        spec = resource.spec.model_dump(by_alias=True)
        for field in find_ineffective_fields(resource, is_one_machine=True):
            _remove_field(spec, field)
        if resource is plan.training and plan.is_online:
            spec = {section: spec[section] for section in _ONLINE_SECTIONS}
        options[resource.kind] = spec
    if plan.training is None:
        options |= {"config": dict(plan.config), "model": plan.model.model_dump(by_alias=True)}
        for field in find_ineffective_options(plan.algorithm, plan.config, plan.model):
            _remove_field(options, field)
    return options


def _remove_field(spec: dict[str, Any], field: str) -> None:
    """Remove a field, by its dotted path, from each entry of the lists on its way."""
    section, _, remaining_path = field.partition(".")
    if remaining_path and isinstance(spec[section], list):
        for entry in spec[section]:
            _remove_field(entry, remaining_path)
    elif remaining_path:
        _remove_field(spec[section], remaining_path)
    else:
        del spec[section]


def option_effect(config: AlgorithmConfig, method: str, name: str, value: Any) -> str:
    """Set one option by a config's method; return "has an effect", "is warned of", "is refused" or "does nothing"."""
    previous_options = effective_options(config)
    try:
        getattr(config, method)(**{name: value})
        if effective_options(config) != previous_options:
            return "has an effect"
    except UserError:
        return "is refused"
    return (
        "is warned of"
        if any(line.startswith(f"{name}: ") for line in config.replaced_options)
        else "does nothing"
    )


def value_without_field(name: str) -> Any:
    """Return a value of an option that no field of a resource checks; 3 if it may have any type."""
    return {"bool": True, "int": 3, "float": 3, "str": "x", "dict": {"a": 3}}.get(TYPES.get(name, ""), 3)


def other_value(schema: Mapping[str, Any]) -> Any:
    """Return a valid value of an option other than its default.

    Args:
        schema: the option's JSON schema.
    """
    default = schema["default"]
    if isinstance(default, bool):
        return not default
    if "enum" in schema:
        return next(value for value in schema["enum"] if value != default)
    if isinstance(default, int):
        return default + 1
    return default / 2 + 0.01 if isinstance(default, float) else 0.5
