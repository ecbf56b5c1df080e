"""What becomes of an option that a config is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hindcast import AlgorithmConfig
from hindcast.errors import UserError
from hindcast.run.ineffective_fields import ineffective_fields, ineffective_options

_READ_ONLINE = ("algorithm", "config", "environment", "model", "seed", "evaluation", "callbacks")


def effective_options(config: AlgorithmConfig) -> dict[str, Any]:
    """All that `build_algo` reads, without the fields that have no effect."""
    plan = config.plan()
    found: dict[str, Any] = {"start": plan.initial_checkpoint}
    if plan.is_online:
        found["width"] = plan.num_envs
    for resource in (plan.training, plan.recording):
        if resource is None:
            continue
        spec = resource.spec.model_dump(by_alias=True)
        for field in ineffective_fields(resource, is_one_machine=True):
            remove(spec, field)
        if resource is plan.training and plan.is_online:
            spec = {section: spec[section] for section in _READ_ONLINE}
        found[resource.kind] = spec
    if plan.training is None:
        found |= {"config": dict(plan.config), "model": plan.model.model_dump(by_alias=True)}
        for field in ineffective_options(plan.algorithm, plan.config, plan.model):
            remove(found, field)
    return found


def remove(spec: dict[str, Any], field: str) -> None:
    first, _, rest = field.partition(".")
    if rest:
        remove(spec[first], rest)
    else:
        del spec[first]


def option_effect(config: AlgorithmConfig, method: str, options: Mapping[str, Any]) -> str:
    """What becomes of options given beside what the config has."""
    before = effective_options(config)
    try:
        getattr(config, method)(**options)
        if effective_options(config) != before:
            return "has an effect"
    except UserError:
        return "is refused"
    (name,) = options
    return (
        "is warned of"
        if any(line.startswith(f"{name}: ") for line in config.replaced_options)
        else "does nothing"
    )


def other_value(option: Mapping[str, Any]) -> Any:
    """A value that an option takes, and that is not its default.

    Args:
        option: its JSON schema.
    """
    default = option["default"]
    if isinstance(default, bool):
        return not default
    if "enum" in option:
        return next(value for value in option["enum"] if value != default)
    if isinstance(default, int):
        return default + 1
    return default / 2 + 0.01 if isinstance(default, float) else 0.5
