"""Convert the values of options to fields of a resource, or raise an error of one sentence."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.alias_generators import to_camel, to_snake

from hindcast.api.base import find_non_json, to_yaml_types
from hindcast.api.environment import NamedCall
from hindcast.api.evaluation import GateSpec
from hindcast.api.input import PrepareSpec, Sampler, TimeSpec
from hindcast.api.sentences import nearest
from hindcast.data_formats import format_traits
from hindcast.errors import SpecError
from hindcast.rllib.builder.expressions import is_expression, parse_comparisons
from hindcast.rllib.builder.model_config import DefaultModelConfig, convert_observation_filter, model_fields
from hindcast.rllib.builder.module_spec import MultiRLModuleSpec, RLModuleSpec, module_fields
from hindcast.rllib.builder.options import OPTIONS, describe_invalid_type
from hindcast.rllib.builder.user_objects import import_path_of, to_environment_id, to_import_path

Options = Mapping[str, Any]

# If two formats have the same method, the later, more general one is used: read_json is JSON, not SampleBatch.
READ_METHODS: Final = {
    method: name for name, traits in format_traits().items() for method in traits.ray_methods
}
"""Read method of Ray Data -> format of the input."""
_WRITE_METHODS: Final = {"write_parquet": None, "write_json": "JSON", "write_csv": "CSV"}
"""Write method of Ray Data -> format of the output; None leaves the format to `output_write_episodes`."""
_URI_SCHEMES: Final = {"gcs": "gs://", "s3": "s3://", "abs": "abfss://"}
"""RLlib's name of a file system -> the scheme of its URIs."""
_FILESYSTEM_CLASSES: Final = {
    "gcs": "pyarrow.fs.GcsFileSystem",
    "s3": "pyarrow.fs.S3FileSystem",
    "abs": "adlfs.AzureBlobFileSystem",
}
"""RLlib's name of a file system -> the class that RLlib constructs."""
_ESTIMATORS: Final = {
    "ImportanceSampling": "is",
    "WeightedImportanceSampling": "wis",
    "DirectMethod": "dm",
    "DoublyRobust": "dr",
}
"""RLlib's class of an estimator -> Hindcast's name of the estimate."""
_WORKER_FIELDS: Final = {"num_cpus": "cpus", "num_gpus": "gpus", "memory": "memory"}
"""Ray's resource option of a worker -> field of `dataWorkers`."""
_BATCHING_OPTIONS: Final = {
    "prefetch_batches": "int",
    "local_shuffle_buffer_size": "count",
    "local_shuffle_seed": "int",
}
"""Option of `iter_batches_kwargs` -> type of its values."""
_BLOCK_SIZE_OPTIONS: Final = {"override_num_blocks": "count", "concurrency": "count"}
WRITE_ARGUMENTS_WITHOUT_EFFECT: Final = ("concurrency", "ray_remote_args", "try_create_dir")
"""Arguments of Ray Data's write methods that a recording does not need."""
_REPLACED_ENTRIES: Final = {
    "input_read_method_kwargs": dict.fromkeys(
        _BLOCK_SIZE_OPTIONS, "Hindcast chooses the size of blocks for each format"
    ),
    "map_batches_kwargs": {"zero_copy_batch": "blocks are always read in shared memory"},
    "output_write_method_kwargs": dict.fromkeys(
        WRITE_ARGUMENTS_WITHOUT_EFFECT, "runners write the files themselves, into a new folder"
    ),
}
"""Option -> its entries without effect -> the reason."""


def copy_value(value: Any) -> Any:
    """Copy dictionaries, lists, tuples and descriptions of networks, recursively; return any other object itself.

    Sets and instances of subclasses of list are copied without their elements.
    """
    if isinstance(value, dict):
        mapping = copy.copy(value)
        mapping.update({key: copy_value(entry) for key, entry in value.items()})
        return mapping
    if type(value) in (list, tuple):
        return type(value)(map(copy_value, value))
    if isinstance(value, list | set):
        return copy.copy(value)
    if isinstance(value, DefaultModelConfig | RLModuleSpec | MultiRLModuleSpec):
        config = copy.copy(value)
        vars(config).update(copy_value(vars(value)))
        return config
    return value


def array_to_list(value: Any) -> Any:
    """Convert an array, which has no truth value, to a list; return any other value unchanged."""
    is_array = hasattr(value, "__array__") and hasattr(value, "tolist")
    return value.tolist() if is_array and value.ndim else value


def _check_env_config(value: Any) -> Any:
    """Return the value unchanged, after checking that a resource can contain it."""
    if isinstance(value, Mapping) and (problem := find_non_json(to_yaml_types(value))):
        raise SpecError(
            f"env_config contains {problem}, which a resource cannot contain: use it in the function that you pass to "
            "register_env, or pass text from which the environment finds it, such as its import path."
        )
    return value


def space_to_field(value: Any) -> Any:
    """Convert a Gymnasium space to the resource's JSON; return JSON and None as they are."""
    if value is None or isinstance(value, Mapping):
        return value
    # Imported here because JSON needs no Gymnasium.
    from hindcast.episodes.spaces import space_to_json

    return space_to_json(value)


def has_recorded_input(options: Options) -> bool:
    """Return True if `input_` names anything but the sampler."""
    return any(entry != "sampler" for entry in input_entries(options))


def input_entries(options: Options) -> list[Any]:
    """Return the entries of `input_`, without their weights."""
    inputs = options.get("input_") or ()
    return list(inputs) if isinstance(inputs, Mapping | list | tuple) else [inputs]


def output_path(options: Options) -> str:
    """Return `spec.output.path`.

    Raises:
        SpecError: the output is missing or not a path, or the file system is unknown.
    """
    path = options.get("output")
    if not path:
        raise SpecError("output is missing: name the folder of the dataset with .offline_data(output=...).")
    if callable(path):
        raise SpecError(
            f"output is {path!r}, but only build_algo() accepts a function that makes an OutputWriter: name a folder, "
            "record, and then pass the batches on: for batch in DatasetReader(folder): writer.write(batch)."
        )
    if not is_path(path):
        raise SpecError(f"output is {path!r}, expected one path: a recording writes to one folder.")
    if path == "logdir":
        raise SpecError('output is "logdir", which does not exist here: name the folder of the dataset.')
    return add_scheme(path, "output_filesystem", options)


def is_filesystem(value: Any) -> bool:
    """Return True if a value is a file system of pyarrow or fsspec, or a store of obstore."""
    if value is None or isinstance(value, str):
        return False
    # Imported here because most configs only name paths.
    from fsspec import AbstractFileSystem
    from pyarrow.fs import FileSystem

    from hindcast.storage.backend import is_from_obstore

    return isinstance(value, FileSystem | AbstractFileSystem) or is_from_obstore(value)


def make_filesystem(option: str, options: Options) -> Any:
    """Return the value of `input_filesystem` or `output_filesystem`; with arguments, the file system that it names.

    Raises:
        SpecError: the arguments do not apply, or the file system refuses them.
    """
    filesystem, kwargs = options.get(option), options.get(f"{option}_kwargs")
    if not kwargs:
        return filesystem
    if filesystem not in _FILESYSTEM_CLASSES:
        raise SpecError(
            f"{option}_kwargs are arguments of the file system that {option} names: set {option} to one of "
            f"{', '.join(map(repr, _FILESYSTEM_CLASSES))}."
        )
    module, _, name = _FILESYSTEM_CLASSES[filesystem].rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)(**kwargs)
    except ModuleNotFoundError:
        raise SpecError(
            f"{option} is {filesystem!r} with arguments, which requires the package {module}."
        ) from None
    except Exception as error:
        raise SpecError(f"{option}_kwargs: {name} raised {type(error).__name__}: {error}") from error


def check_batching(options: Any) -> None:
    """Check the options of `iter_batches_kwargs`.

    Raises:
        SpecError: an option is unknown.
    """
    if options is not None:
        check_names("iter_batches_kwargs", options, _BATCHING_OPTIONS)
        _check_entry_types("iter_batches_kwargs", options, _BATCHING_OPTIONS)


def replaced_entries(option: str, value: Any) -> list[str]:
    """Return a note, `<entry>: <reason>`, for each entry without effect in the dictionary of an option."""
    if not isinstance(value, Mapping):
        return []
    reasons = _REPLACED_ENTRIES.get(option, {})
    return [f"{name}: {reason}" for name, reason in reasons.items() if value.get(name) is not None]


def is_path(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "__fspath__")


def add_scheme(path: Any, option: str, options: Options) -> str:
    """Return a path with the scheme of the file system that an option names.

    A file system object replaces the path's own scheme; a name such as "s3" only applies to a path without a scheme.
    """
    text, filesystem = str(path), make_filesystem(option, options)
    if is_filesystem(filesystem):
        from hindcast.storage.user_files import register_filesystem

        return f"{register_filesystem(filesystem)}://{text.partition('://')[2] or text}"
    if filesystem is None:
        return text
    if not isinstance(filesystem, str) or filesystem not in _URI_SCHEMES:
        raise SpecError(
            f"{option} is {filesystem!r}: put it in the path, as in s3://bucket/folder, or set one of "
            f"{', '.join(_URI_SCHEMES)}, a pyarrow.fs.FileSystem, an fsspec file system, or a store of obstore."
        )
    if "://" in text:
        return text
    return _URI_SCHEMES[filesystem] + text.lstrip("/")


def _convert_read_kwargs(options: Any) -> dict[str, Any]:
    """Convert `input_read_method_kwargs` to fields of the input."""
    require_mapping("input_read_method_kwargs", options)
    _check_entry_types("input_read_method_kwargs", options, _BLOCK_SIZE_OPTIONS)
    fields = {name: options[name] for name in ("columns", "filter") if options.get(name) is not None}
    if is_expression(fields.get("filter")):
        fields["filter"] = parse_comparisons(fields["filter"])
    read_options = {
        name: value
        for name, value in options.items()
        if name not in (*_BLOCK_SIZE_OPTIONS, "columns", "filter")
    }
    return {**fields, "readOptions": read_options} if read_options else fields


def _convert_data_workers(options: Any) -> dict[str, Any]:
    """Convert `map_batches_kwargs` to `spec.pipeline.dataWorkers`."""
    check_names(
        "map_batches_kwargs", options, ("concurrency", "zero_copy_batch", "ray_remote_args", *_WORKER_FIELDS)
    )
    _check_entry_types("map_batches_kwargs", options, {"zero_copy_batch": "bool"})
    remote_args = options.get("ray_remote_args") or {}
    check_names("map_batches_kwargs: ray_remote_args", remote_args, tuple(_WORKER_FIELDS))
    for name in remote_args:
        if name in options and options[name] != remote_args[name]:
            raise SpecError(
                f"map_batches_kwargs: {name} is {options[name]!r}, but {remote_args[name]!r} in ray_remote_args: set "
                "one of them."
            )
    options = {**remote_args, **options}
    workers = {
        _WORKER_FIELDS[name]: _convert_bytes(value) if name == "memory" else value
        for name, value in options.items()
        if name in _WORKER_FIELDS
    }
    concurrency = options.get("concurrency")
    # For Ray Data a pair is the minimum and maximum size of a pool.
    if isinstance(concurrency, tuple | list):
        if len(concurrency) != 2:
            raise SpecError(
                f"map_batches_kwargs: concurrency is {concurrency!r}, expected a number, or the minimum and maximum "
                "number of data workers."
            )
        low, high = concurrency
        if isinstance(low, int) and isinstance(high, int) and low > high:
            raise SpecError(
                f"map_batches_kwargs: concurrency is {concurrency!r}, whose first number, the minimum, exceeds the "
                "maximum."
            )
        workers["minReplicas"], workers["maxReplicas"] = low, high
    elif concurrency is not None:
        workers["replicas"] = concurrency
    return workers


def _to_camel_section(option: str, section: type[BaseModel], options: Any) -> dict[str, Any]:
    """Convert a dictionary of fields in snake case to a section of a resource."""
    fields = {to_snake(str(name)): value for name, value in require_mapping(option, options).items()}
    check_names(option, fields, tuple(section.model_fields))
    return {to_camel(name): value for name, value in fields.items()}


def _convert_replay_buffer(options: Any) -> dict[str, Any]:
    """Convert `replay_buffer_config` to fields of the sampler."""
    check_names("replay_buffer_config", options, ("type", "capacity", "alpha", "beta"))
    return {name: value for name, value in options.items() if name == "capacity"}


def _get_explore(options: Any) -> Any:
    """Return `explore` of `evaluation_config`, or None if it is not set."""
    require_mapping("evaluation_config", options)
    if unknown := [name for name in options if name != "explore"]:
        raise SpecError(
            f"evaluation_config contains {', '.join(map(repr, unknown))}, but only accepts explore, env and "
            "env_config: evaluations follow the options of .evaluation(); for other data use offline_evaluation_input."
        )
    return options.get("explore")


def estimate_names(option: str, value: Any) -> list[Any]:
    """Return the names of estimates, from a list or from RLlib's dictionary name -> {"type": class}.

    Raises:
        SpecError: an entry has options other than a type.
    """
    if isinstance(value, Mapping):
        return [_estimate_name(f"{option}[{name!r}]", entry) for name, entry in value.items()]
    return [_estimate_name(option, entry) for entry in _as_list(value)]


def _estimate_name(label: str, entry: Any) -> str:
    estimator = entry.get("type") if isinstance(entry, Mapping) else entry
    if unknown := [key for key in entry if key != "type"] if isinstance(entry, Mapping) else []:
        raise SpecError(
            f"{label} contains {', '.join(map(repr, unknown))}, but only accepts type: "
            "offline_evaluation_model_updates sets the number of updates of models."
        )
    name = estimator if isinstance(estimator, str) else getattr(estimator, "__name__", str(estimator))
    name = name.rpartition(".")[2]
    return _ESTIMATORS.get(name, name)


def _convert_evaluation_type(value: Any) -> list[str] | None:
    """Return the estimate as a list; None for the loss, which is always computed."""
    name = _convert_choice("offline_evaluation_type", {"eval_loss": None, "is": "is", "pdis": "pdis"}, value)
    return None if name is None else [name]


def _convert_choice(option: str, choices: Mapping[str, str | None], value: Any) -> str | None:
    if not isinstance(value, str) or value not in choices:
        raise SpecError(f"{option} is {value!r}, expected one of {', '.join(map(repr, choices))}.")
    return choices[value]


def _convert_connectors(value: Any) -> list[Any]:
    return [_convert_connector(entry) for entry in _as_list(value)]


def named_connectors(value: Any) -> list[NamedCall]:
    """Return the connectors of `learner_connector` as import paths and arguments.

    Raises:
        SpecError: an entry is neither a name nor a connector.
    """
    if value is None:
        return []
    return [
        NamedCall(name=connector) if isinstance(connector, str) else NamedCall(**connector)
        for connector in _convert_connectors(value)
    ]


def _convert_connector(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return to_import_path("learner_connector", value)
    check_names("learner_connector", value, ("name", "kwargs"))
    return {**value, "name": to_import_path("learner_connector", value.get("name"))}


def _to_callback_classes(hook: str, value: Any) -> list[Any]:
    """Convert functions to import paths of callback classes with one method, `hook`."""
    from hindcast.rllib.callbacks import callbacks_from_function

    functions = _as_list(value)
    if any(not (callable(function) or isinstance(function, str)) for function in functions):
        raise SpecError(
            f'{hook} is {value!r}, expected a function, its "package.module:name", or a list of them.'
        )
    return [
        f"hindcast.rllib.callbacks:{hook}.{path.replace(':', '.')}"
        if (path := function if isinstance(function, str) else import_path_of(function))
        else to_import_path(hook, callbacks_from_function(hook, function))
        for function in functions
    ]


def _zero_to_one(value: Any) -> Any:
    """Convert 0, which for RLlib is one runner or learner in the calling process, to 1."""
    return 1 if isinstance(value, int) and value == 0 else value


def _to_residency(value: Any) -> str:
    return "Resident" if value else "Streaming"


def _convert_bytes(value: Any) -> Any:
    """Convert a float such as 1e9 to the text of an integer, since sizes in a resource are not floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else value


def require_mapping(label: str, value: Any) -> Mapping[str, Any]:
    """Return a value after checking that it is a dictionary.

    Raises:
        SpecError: the value is not a dictionary.
    """
    if not isinstance(value, Mapping):
        raise SpecError(f"{label} is {value!r}, expected a dictionary.")
    return value


def _as_list(value: Any) -> Sequence[Any]:
    """Return a list unchanged, and any other value in a list of one."""
    return value if isinstance(value, list | tuple) else [value]


def check_names(option: str, options: Any, names: Iterable[str]) -> None:
    """Check the names in an option's value, a dictionary.

    Raises:
        SpecError: the value is not a dictionary, or contains a name that is not in `names`.
    """
    for name in require_mapping(option, options):
        if name not in names:
            raise SpecError(f"{option}: {name!r} is not an option here{nearest(str(name), names)}")


def _check_entry_types(option: str, options: Options, types: Mapping[str, str]) -> None:
    """Check the types of entries of an option's dictionary, which no field of a resource checks.

    Raises:
        SpecError: an entry has another type.
    """
    for name, kind in types.items():
        if options.get(name) is not None and (expected := describe_invalid_type(options[name], kind)):
            raise SpecError(f"{option}: {name} is {options[name]!r}, expected {expected}.")


CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "env": to_environment_id,
    "env_config": _check_env_config,
    "observation_space": space_to_field,
    "action_space": space_to_field,
    "observation_filter": convert_observation_filter,
    "num_env_runners": _zero_to_one,
    "num_learners": _zero_to_one,
    "num_cpus_per_learner": lambda value: None if value == "auto" else value,
    "callbacks_class": lambda value: [to_import_path("callbacks_class", entry) for entry in _as_list(value)],
    "learner_class": partial(to_import_path, "learner_class"),
    **{name: partial(_to_callback_classes, name) for name in OPTIONS["callbacks"] if name.startswith("on_")},
    "learner_connector": _convert_connectors,
    "input_read_method": lambda value: (
        READ_METHODS.get(value, "RayData") if isinstance(value, str) else "RayData"
    ),
    "input_read_method_kwargs": _convert_read_kwargs,
    "input_read_sample_batches": lambda value: "SampleBatch" if value else None,
    "map_batches_kwargs": _convert_data_workers,
    "sampler": partial(_to_camel_section, "sampler", Sampler),
    "input_prepare": partial(_to_camel_section, "input_prepare", PrepareSpec),
    "input_time": partial(_to_camel_section, "input_time", TimeSpec),
    "replay_buffer_config": _convert_replay_buffer,
    "materialize_data": _to_residency,
    "materialize_mapped_data": _to_residency,
    "prelearner_class": partial(to_import_path, "prelearner_class"),
    "prelearner_buffer_class": partial(to_import_path, "prelearner_buffer_class"),
    "prelearner_buffer_kwargs": lambda value: value or None,
    "prelearner_use_recorded_module_states": lambda value: "recorded" if value else "zero",
    "offline_data_class": partial(to_import_path, "offline_data_class"),
    "output_write_episodes": lambda value: "Episodes" if value else "Columns",
    "output_write_method": partial(_convert_choice, "output_write_method", _WRITE_METHODS),
    "output_max_file_size": _convert_bytes,
    # The options that they stand for are set instead, see `expand_options` and `make_filesystem`.
    **dict.fromkeys(
        ("output_write_method_kwargs", "input_filesystem_kwargs", "output_filesystem_kwargs"), lambda _: None
    ),
    "evaluation_interval": lambda value: value or None,
    "evaluation_config": _get_explore,
    "evaluation_gate": partial(_to_camel_section, "evaluation_gate", GateSpec),
    "offline_evaluation_interval": lambda value: value or None,
    "offline_evaluation_input": lambda value: [value] if isinstance(value, str | Path) else value,
    "offline_evaluation_type": _convert_evaluation_type,
    "off_policy_estimation_methods": lambda value: (
        estimate_names("off_policy_estimation_methods", value) or None
    ),
    "custom_evaluation_function": partial(to_import_path, "custom_evaluation_function"),
    "model_config": model_fields,
    "rl_module_spec": module_fields,
}
"""Option -> the function that converts its value to the value of the field; a result of None leaves the field out."""
