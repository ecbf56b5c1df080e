"""Notes on given options that have no effect on what is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.builder.model_config import replaced_model_fields
from hindcast.builder.module_spec import replaced_module_fields
from hindcast.builder.option_values import has_recorded_input, replaced_parts
from hindcast.builder.options import OPTIONS_BY_NAME, Option, use_option_names
from hindcast.builder.resources import can_learn_online, has_packed_columns, is_online_only, make_build_plan
from hindcast.errors import SpecError
from hindcast.run.ineffective_fields import ineffective_fields, ineffective_options

_READ_ONLINE: Final = ("environment", "model", "seed", "evaluation", "initialCheckpoint", "callbacks")
"""Sections of a training that apply to an algorithm that learns in its environment."""


def replaced_options(algorithm: str | None, options: Mapping[str, Any]) -> list[str]:
    """One line per option without effect: its name, and its replacement or why it does not apply."""
    given = {name: value for name, value in options.items() if value is not None}
    idle = _idle_fields(algorithm, options)
    return [f"{name}: {line}" for name in given for line in _lines(algorithm, given, name, idle)]


def _lines(
    algorithm: str | None, given: Mapping[str, Any], name: str, idle: Mapping[str, str]
) -> Iterator[str]:
    option = OPTIONS_BY_NAME.get(name)
    if option is None:
        own = to_camel(name.rstrip("_"))
        yield from _found(idle, f"config.{own}", f"customConfig.{own}")
    elif option.only_with and not given.get(option.only_with):
        yield f"only has an effect with {option.only_with}"
    elif option.kind == "refused":
        return
    elif option.kind == "replaced":
        yield option.remark
    elif reason := _out_of_place(algorithm, given, option):
        yield reason
    else:
        yield from _found(idle, option.training, option.recording)
        yield from _within(given, name, idle)


def _found(idle: Mapping[str, str], *fields: str) -> list[str]:
    """What is so of the first of the fields that is idle."""
    return [use_option_names(idle[field]) for field in fields if field in idle][:1]


def _out_of_place(algorithm: str | None, given: Mapping[str, Any], option: Option) -> str | None:
    """Why no resource that is built has the option's field."""
    records, online = bool(given.get("output")), algorithm is not None and is_online_only(algorithm)
    if option.recording and records:
        return None
    if not option.training:
        return "applies to recordings only, and no output is given"
    if online:
        is_read = option.training.split(".")[0] in _READ_ONLINE
        return None if is_read else f"{algorithm} learns from its own samples, in this process"
    trains = given.get("input_") or (algorithm is not None and can_learn_online(algorithm))
    if records and not trains:
        return "applies to trainings only, and no input_ is given"
    of_data = option.training.startswith("input") and not option.training.startswith("input.sampler")
    is_idle = of_data and option.name != "input_" and not has_recorded_input(given)
    return "applies to recorded data only, and input_ names none" if is_idle else None


def _within(given: Mapping[str, Any], name: str, idle: Mapping[str, str]) -> Iterator[str]:
    """Notes on parts of a value."""
    value = given[name]
    if name == "model_config":
        yield from replaced_model_fields(value, idle)
    if name == "rl_module_spec":
        yield from replaced_module_fields(value, idle)
    yield from replaced_parts(name, value)
    if name == "output_compress_columns" and not has_packed_columns(given):
        yield "applies to output_format='SampleBatch' only; for Parquet use output_compression"
    if name == "evaluation_parallel_to_training" and value and not given.get("evaluation_num_env_runners"):
        yield "one process evaluates; set evaluation_num_env_runners for more"
    if name == "materialize_mapped_data" and bool(value) != bool(given.get("materialize_data", value)):
        yield "contradicts materialize_data; the data stay resident because one of the two is True"


def _idle_fields(algorithm: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    """Fields without effect in what is built; none if it cannot be built."""
    try:
        plan = make_build_plan(algorithm or "", options, "config")
    except SpecError:
        return {}
    built = [resource for resource in (plan.training, plan.recording) if resource is not None]
    idle = ineffective_options(plan.algorithm, plan.config, plan.model)
    return idle | {field: why for each in built for field, why in ineffective_fields(each, True).items()}
