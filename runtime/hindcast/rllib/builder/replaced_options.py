"""Notes on options that are set although they have no effect on what is built, wholly or in part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.errors import Problem, SpecError
from hindcast.ray_session import is_driver_of_cluster
from hindcast.rllib.builder.input_entries import has_row_batches
from hindcast.rllib.builder.model_config import notes_on_model_fields
from hindcast.rllib.builder.module_spec import replaced_module_fields
from hindcast.rllib.builder.option_values import has_recorded_input, replaced_entries
from hindcast.rllib.builder.options import OPTIONS_BY_NAME, Option, use_option_names
from hindcast.rllib.builder.resources import (
    can_learn_online,
    has_packed_columns,
    is_online_only,
    make_build_plan,
)
from hindcast.run.ineffective_fields import find_ineffective_fields, find_ineffective_options

_ONLINE_SECTIONS: Final = ("environment", "model", "seed", "evaluation", "initialCheckpoint", "callbacks")
"""Sections of a training that affect an algorithm that learns in its environment."""


def replaced_options(algorithm: str | None, options: Mapping[str, Any]) -> list[str]:
    """Return a line for each option without effect: its name, then its replacement or the reason."""
    set_options = {name: value for name, value in options.items() if value is not None}
    reason_by_field = _find_reasons_by_field(algorithm, options)
    return [
        f"{name}: {note}"
        for name in set_options
        for note in _notes_on_option(algorithm, set_options, name, reason_by_field)
    ]


def _notes_on_option(
    algorithm: str | None, options: Mapping[str, Any], name: str, reason_by_field: Mapping[str, Problem]
) -> Iterator[str]:
    option = OPTIONS_BY_NAME.get(name)
    if option is None:
        field = to_camel(name.rstrip("_"))
        yield from _first_reason(reason_by_field, f"config.{field}", f"customConfig.{field}")
    elif option.only_with and not options.get(option.only_with):
        yield f"only has an effect with {option.only_with}"
    elif option.kind == "refused":
        return  # its value is RLlib's default; other values are refused when they are set
    elif option.kind == "replaced":
        if not (name == "input_read_batch_size" and has_row_batches(options)):
            yield option.remark
    elif reason := _missing_resource_reason(algorithm, options, option):
        yield reason
    else:
        yield from _first_reason(reason_by_field, option.training, option.recording)
        yield from _notes_on_entries(algorithm, options, name, reason_by_field)


def _first_reason(reason_by_field: Mapping[str, Problem], *fields: str) -> list[str]:
    """Return the reason of the first of the fields that has no effect, in a list; empty if all have an effect."""
    return [use_option_names(reason_by_field[field]).text for field in fields if field in reason_by_field][:1]


def _missing_resource_reason(algorithm: str | None, options: Mapping[str, Any], option: Option) -> str | None:
    """Return why no resource that is built has the option's field; None if a resource has it."""
    has_output, is_online = bool(options.get("output")), algorithm is not None and is_online_only(algorithm)
    if option.recording and has_output:
        return None
    if not option.training:
        return "only applies to recordings, but no output is set"
    if is_online:
        is_used_online = option.training.split(".")[0] in _ONLINE_SECTIONS
        return None if is_used_online else f"{algorithm} learns from its own samples, in this process"
    has_training = options.get("input_") or (algorithm is not None and can_learn_online(algorithm))
    if has_output and not has_training:
        return "only applies to trainings, but no input_ is set"
    is_data_field = option.training.startswith("input") and not option.training.startswith("input.sampler")
    lacks_data = is_data_field and option.name != "input_" and not has_recorded_input(options)
    return "only applies to recorded data, but input_ names none" if lacks_data else None


def _notes_on_entries(
    algorithm: str | None, options: Mapping[str, Any], name: str, reason_by_field: Mapping[str, Problem]
) -> Iterator[str]:
    """Yield notes on entries of an option's value, and on combinations in which it has no effect in part."""
    value = options[name]
    if name == "model_config":
        yield from notes_on_model_fields(value, reason_by_field)
    if name == "rl_module_spec":
        yield from replaced_module_fields(value, reason_by_field)
    yield from replaced_entries(name, value)
    if name == "output_compress_columns" and not has_packed_columns(options):
        yield "only applies to output_format='SampleBatch'; for Parquet use output_compression"
    plays_in_training = algorithm is not None and can_learn_online(algorithm)
    if name == "num_env_runners" and plays_in_training and isinstance(value, int) and value > 1:
        yield "only applies to evaluate(); train() plays in this process, in num_envs_per_env_runner environments"
    if name == "evaluation_gate":
        yield "only applies to to_resource(), whose resource `hindcast gate` reads"
    if name == "evaluation_parallel_to_training" and value and not options.get("evaluation_num_env_runners"):
        yield "one process evaluates; set evaluation_num_env_runners for more"
    if name == "materialize_mapped_data" and value is False and options.get("materialize_data"):
        yield "has no effect: materialize_data keeps the data in memory"


def _find_reasons_by_field(algorithm: str | None, options: Mapping[str, Any]) -> dict[str, Problem]:
    """Return, for each field of the resources that has no effect, the note on it.

    Empty if the options cannot be built.
    """
    try:
        plan = make_build_plan(algorithm or "", options, "config")
    except SpecError:
        return {}
    resources = [resource for resource in (plan.training, plan.recording) if resource is not None]
    reason_by_field = find_ineffective_options(plan.algorithm, plan.config, plan.model)
    for resource in resources:
        reason_by_field |= find_ineffective_fields(resource, is_one_machine=not is_driver_of_cluster())
    return reason_by_field
