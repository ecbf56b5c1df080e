"""Convert the options of the data to entries of `spec.input`, or raise an error of one sentence."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Final

from hindcast.api.sentences import nearest
from hindcast.data_formats import format_traits
from hindcast.errors import SpecError, UserError
from hindcast.rllib.batch_io.table_input import TableInput
from hindcast.rllib.builder.option_values import (
    READ_METHODS,
    Options,
    add_scheme,
    check_names,
    input_entries,
    is_path,
)
from hindcast.rllib.builder.user_objects import to_import_path
from hindcast.user_code import import_object

_SAMPLE_BATCH_METHODS: Final = ("read_json", "read_parquet")
"""Read methods of Ray Data for SampleBatch data."""
_MAX_WEIGHT_ERROR: Final = 1e-6
"""Allowed distance of the sum of weights from 1: that of thirds as floats is below."""


def input_fields(options: Options, common_fields: Options) -> list[dict[str, Any]]:
    """Return `spec.input`: an entry for each path of `input_`.

    Args:
        options: name -> value as set by the user.
        common_fields: the fields of every entry that is a path; under "sampler", the fields of the sampler.

    Raises:
        SpecError: there are no inputs, one is not a path, the sampler is missing, or read options conflict.
    """
    inputs = options.get("input_")
    if not inputs:
        raise SpecError("input_ is missing: name the data to train on with .offline_data(input_=...).")
    if options.get("input_read_sample_batches") and options.get("input_read_episodes"):
        raise SpecError("input_read_sample_batches and input_read_episodes are both True: set one of them.")
    common_fields = _add_batch_size(_add_read_method(common_fields, options), options)
    weights = inputs if isinstance(inputs, Mapping) else {}
    _check_weights(weights)
    paths = input_entries(options)
    if "sampler" in common_fields and "sampler" not in paths:
        raise SpecError(
            "sampler, replay_buffer_config and num_steps_sampled_before_learning_starts configure the sampler: "
            'add "sampler" to input_.'
        )
    return [
        {**_input_entry(path, options, common_fields), **({"weight": weights[path]} if weights else {})}
        for path in paths
    ]


def _check_weights(weights: Mapping[Any, Any]) -> None:
    """Check the probabilities of inputs.

    Raises:
        SpecError: one is not a number above 0, or they do not sum to 1.
    """
    for path, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, Real) or not float(weight) > 0:
            raise SpecError(f"input_[{path!r}] is {weight!r}, expected a number above 0.")
    total = math.fsum(weights.values())
    if weights and not abs(total - 1) <= _MAX_WEIGHT_ERROR:
        raise SpecError(
            f"input_ has weights that sum to {total:.6g}, expected 1: each is the probability of a batch of its input."
        )


def _add_read_method(common_fields: Options, options: Options) -> Options:
    """Return the common fields, with `readOptions.method` if the read method is not in `READ_METHODS`.

    Raises:
        SpecError: Ray Data has no such method, the method has no such option, or it contradicts another option.
    """
    method = options.get("input_read_method")
    if options.get("input_read_sample_batches") and method not in (None, *_SAMPLE_BATCH_METHODS):
        raise SpecError(
            f"input_read_sample_batches is True, but input_read_method is {method!r}: SampleBatch data are read by "
            f"{' or '.join(_SAMPLE_BATCH_METHODS)}; leave one of the options out."
        )
    if method is None or (isinstance(method, str) and method in READ_METHODS):
        return common_fields
    if isinstance(method, str) and ":" not in method:
        _check_ray_method(method, common_fields.get("readOptions", {}))
    read_options = {
        "method": to_import_path("input_read_method", method),
        **common_fields.get("readOptions", {}),
    }
    return {**common_fields, "readOptions": read_options}


def _add_batch_size(common_fields: Options, options: Options) -> Options:
    """Return the common fields, with `readOptions.batch_size` if a class of the user's gets rows in batches."""
    if not has_row_batches(options):
        return common_fields
    batch_size = {"batch_size": options["input_read_batch_size"]}
    return {**common_fields, "readOptions": {**batch_size, **common_fields.get("readOptions", {})}}


def has_row_batches(options: Options) -> bool:
    """Return True if `input_read_batch_size` has an effect: a class in RLlib's form gets that many rows at a time."""
    method = options.get("input_read_method")
    # Rows of such files have no ids of episodes, so a batch might end within an episode.
    has_timesteps = (
        not isinstance(method, str) or format_traits()[READ_METHODS.get(method, "Parquet")].has_timesteps
    )
    if options.get("input_read_batch_size") is None or not has_timesteps:
        return False
    if options.get("prelearner_buffer_class") or options.get("prelearner_buffer_kwargs"):
        return True
    for option, predicate in (("prelearner_class", "maps_any_rows"), ("offline_data_class", "reads_rows")):
        value = options.get(option)
        try:
            cls = import_object(value, option) if isinstance(value, str) else value
        except UserError:
            continue  # building the algorithm raises it, with advice
        if isinstance(cls, type) and hasattr(cls, predicate) and getattr(cls, predicate)():
            return True
    return False


def _check_ray_method(method: str, read_options: Options) -> None:
    """Check the name of a read method of Ray Data, and the names of its arguments.

    Raises:
        SpecError: there is no such method, or it has no such argument.
    """
    import ray.data

    methods = [name for name in dir(ray.data) if name.startswith("read_")]
    if method not in methods:
        raise SpecError(
            f"input_read_method is {method!r}, which is not a read method of Ray Data{nearest(method, methods)}"
        )
    parameters = inspect.signature(getattr(ray.data, method)).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_names("input_read_method_kwargs", read_options, [*parameters, "batch_size"])


def _input_entry(path: Any, options: Options, common_fields: Options) -> dict[str, Any]:
    if isinstance(path, str) and path == "sampler":
        return {"sampler": common_fields.get("sampler", {})}
    if isinstance(path, TableInput):
        raise SpecError(
            f"input_ contains {path}, which only build_algo() accepts, since a resource names files: write it to a "
            "Parquet file, and name that file."
        )
    if not is_path(path):
        raise SpecError(
            f"input_ contains {path!r}, expected a path; only build_algo() accepts functions that make an InputReader, "
            "since a resource cannot contain them: write its batches to a folder (JsonWriter), and name that folder."
        )
    fields = {name: value for name, value in common_fields.items() if name != "sampler"}
    return {"path": add_scheme(path, "input_filesystem", options), **fields}
