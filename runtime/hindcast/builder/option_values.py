"""Converts option values to fields of a resource, or raises one sentence on what is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.api.base import find_non_json
from hindcast.api.environment import NamedCall
from hindcast.api.sentences import nearest
from hindcast.builder.expressions import is_expression, parse_comparisons
from hindcast.builder.model_config import DefaultModelConfig, model_fields, observation_filter
from hindcast.builder.module_spec import MultiRLModuleSpec, RLModuleSpec, module_fields
from hindcast.builder.options import OPTIONS
from hindcast.builder.user_objects import environment_id, import_path_of, to_import_path
from hindcast.errors import SpecError

Options = Mapping[str, Any]

_READ_METHODS: Final = {
    "read_parquet": "Parquet",
    "read_json": "JSON",
    "read_csv": "CSV",
    "read_text": "Text",
    "read_images": "Images",
    "read_binary_files": "Binary",
    "read_tfrecords": "TFRecord",
}
_WRITE_METHODS: Final = {"write_parquet": None, "write_json": "JSON", "write_csv": "CSV"}
_SCHEMES: Final = {"gcs": "gs://", "s3": "s3://", "abs": "abfss://"}
_ESTIMATORS: Final = {
    "ImportanceSampling": "is",
    "WeightedImportanceSampling": "wis",
    "DirectMethod": "dm",
    "DoublyRobust": "dr",
}
"""RLlib's classes."""
_WORKERS: Final = {"num_cpus": "cpus", "num_gpus": "gpus", "memory": "memory"}
_BATCHING: Final = ("prefetch_batches", "local_shuffle_buffer_size", "local_shuffle_seed")
_SIZES: Final = ("override_num_blocks", "concurrency")
_REPLACED_PARTS: Final = {
    "input_read_method_kwargs": dict.fromkeys(_SIZES, "pieces are as large as suits the format"),
    "map_batches_kwargs": {"zero_copy_batch": "blocks are always read in shared memory"},
}


def to_plain(value: Any) -> Any:
    """Tuples as lists, numbers of NumPy as Python's: what YAML could have said."""
    if isinstance(value, Mapping):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if type(value).__module__ == "numpy":
        return to_plain(value.tolist())
    return value


def copy_value(value: Any) -> Any:
    """The value with its own containers and descriptions of networks; all else that it holds is the same object."""
    if isinstance(value, dict):
        twin = copy.copy(value)
        twin.update({key: copy_value(entry) for key, entry in value.items()})
        return twin
    if type(value) in (list, tuple):
        return type(value)(map(copy_value, value))
    if isinstance(value, list | set):
        return copy.copy(value)
    if isinstance(value, DefaultModelConfig | RLModuleSpec | MultiRLModuleSpec):
        described = copy.copy(value)
        vars(described).update(copy_value(vars(value)))
        return described
    return value


def _env_config(value: Any) -> Any:
    if isinstance(value, Mapping) and (found := find_non_json(to_plain(value))):
        raise SpecError(
            f"env_config contains {found}, which a resource cannot hold: use it in the function that you give to "
            "register_env, or give text that the environment finds it by, such as its import path."
        )
    return value


def space_to_field(value: Any) -> Any:
    """A Gymnasium space as the resource's JSON; JSON and None stay."""
    if value is None or isinstance(value, Mapping):
        return value
    from hindcast.episodes.spaces import space_to_json

    return space_to_json(value)


def input_fields(options: Options, common: Options) -> list[dict[str, Any]]:
    """`spec.input`: an entry for each path of `input_`, each with the fields that the inputs have in common; those of
    the sampler go to the entry "sampler".

    Raises:
        SpecError: there are none, one is not a path, an entry is missing, or read options contradict each other.
    """
    given = options.get("input_")
    if not given:
        raise SpecError("input_ is missing: name the data to train on with .offline_data(input_=...).")
    if options.get("input_read_sample_batches") and options.get("input_read_episodes"):
        raise SpecError("input_read_sample_batches and input_read_episodes are both True: set one of them.")
    common = _with_method(common, options)
    weights = given if isinstance(given, Mapping) else {}
    paths = input_entries(options)
    if "sampler" in common and "sampler" not in paths:
        raise SpecError(
            "sampler, replay_buffer_config and num_steps_sampled_before_learning_starts configure the sampler: "
            'add "sampler" to input_.'
        )
    return [
        {**_source(path, options, common), **({"weight": weights[path]} if weights else {})} for path in paths
    ]


def _with_method(common: Options, options: Options) -> Options:
    """The inputs' fields, with the read method if it does not follow from a format."""
    method = options.get("input_read_method")
    if method is None or (isinstance(method, str) and method in _READ_METHODS):
        return common
    read = {"method": to_import_path("input_read_method", method), **common.get("readOptions", {})}
    return {**common, "readOptions": read}


def has_recorded_input(options: Options) -> bool:
    """Whether `input_` names anything but the sampler."""
    return any(entry != "sampler" for entry in input_entries(options))


def input_entries(options: Options) -> list[Any]:
    """The entries of `input_`, without their weights."""
    given = options.get("input_") or ()
    return list(given) if isinstance(given, Mapping | list | tuple) else [given]


def output_path(options: Options) -> str:
    """`spec.output.path`.

    Raises:
        SpecError: it is missing, not a path, or the file system is unknown.
    """
    path = options.get("output")
    if not path:
        raise SpecError("output is missing: name the folder of the dataset with .offline_data(output=...).")
    if callable(path):
        raise SpecError(
            f"output is {path!r}: only build_algo() takes what makes an OutputWriter, since a resource cannot hold it: "
            "name a folder, and pass on its batches: for batch in DatasetReader(folder): writer.write(batch)."
        )
    if not _is_path(path):
        raise SpecError(f"output is {path!r}, expected one path: a recording writes to one folder.")
    if path == "logdir":
        raise SpecError('output is "logdir", which does not exist here: name the folder of the dataset.')
    return _located(path, options.get("output_filesystem"))


def is_filesystem(value: Any) -> bool:
    """Whether this is a file system of pyarrow or of fsspec, or a store of obstore's."""
    if value is None or isinstance(value, str):
        return False
    from fsspec import AbstractFileSystem
    from pyarrow.fs import FileSystem

    from hindcast.storage.backend import is_from_obstore

    return isinstance(value, FileSystem | AbstractFileSystem) or is_from_obstore(value)


def check_batching(given: Any) -> None:
    """Refuse what `iter_batches_kwargs` does not take.

    Raises:
        SpecError: it holds something else.
    """
    if given is not None:
        _only("iter_batches_kwargs", given, _BATCHING)


def replaced_parts(option: str, given: Any) -> list[str]:
    """The entries of a dictionary of options that have no effect, each with its replacement."""
    if not isinstance(given, Mapping):
        return []
    parts = _REPLACED_PARTS.get(option, {})
    return [f"{name}: {remark}" for name, remark in parts.items() if given.get(name) is not None]


def _is_path(given: Any) -> bool:
    return isinstance(given, str) or hasattr(given, "__fspath__")


def _source(path: Any, options: Options, common: Options) -> dict[str, Any]:
    if isinstance(path, str) and path == "sampler":
        return {"sampler": common.get("sampler", {})}
    if not _is_path(path):
        raise SpecError(
            f"input_ contains {path!r}, expected a path; only build_algo() takes functions that make an InputReader, "
            "since a resource cannot hold them: write its batches to a folder (JsonWriter), and name that."
        )
    recorded = {name: value for name, value in common.items() if name != "sampler"}
    return {"path": _located(path, options.get("input_filesystem")), **recorded}


def _located(path: Any, filesystem: Any) -> str:
    """A path with the scheme of the file system, which goes before its own where it is an object."""
    text = str(path)
    if is_filesystem(filesystem):
        from hindcast.storage.user_files import scheme_of

        return f"{scheme_of(filesystem)}://{text.partition('://')[2] or text}"
    if filesystem is None or "://" in text:
        return text
    if not isinstance(filesystem, str) or filesystem not in _SCHEMES:
        raise SpecError(
            f"the file system is {filesystem!r}: put it in the path, as in s3://bucket/folder, or give one of "
            f"{', '.join(_SCHEMES)}, a pyarrow.fs.FileSystem, an fsspec file system, or a store of obstore's."
        )
    return _SCHEMES[filesystem] + text.lstrip("/")


def _read_kwargs(given: Any) -> dict[str, Any]:
    """The input's fields of `input_read_method_kwargs`."""
    require_mapping("input_read_method_kwargs", given)
    fields = {name: given[name] for name in ("columns", "filter") if given.get(name) is not None}
    if is_expression(fields.get("filter")):
        fields["filter"] = parse_comparisons(fields["filter"])
    rest = {name: value for name, value in given.items() if name not in (*_SIZES, "columns", "filter")}
    return {**fields, "readOptions": rest} if rest else fields


def _data_workers(given: Any) -> dict[str, Any]:
    """`spec.pipeline.dataWorkers` of `map_batches_kwargs`."""
    _only("map_batches_kwargs", given, ("concurrency", "zero_copy_batch", *_WORKERS))
    workers = {_WORKERS[name]: value for name, value in given.items() if name in _WORKERS}
    concurrency = given.get("concurrency")
    if isinstance(concurrency, tuple | list):
        if len(concurrency) != 2:
            raise SpecError(
                f"map_batches_kwargs: concurrency is {concurrency!r}, expected a number, or two: the fewest and the "
                "most data workers."
            )
        workers["minReplicas"], workers["maxReplicas"] = concurrency
    elif concurrency is not None:
        workers["replicas"] = concurrency
    return workers


def _section(option: str, given: Any) -> dict[str, Any]:
    """A section of a resource, given as a dictionary of its fields in snake case."""
    return {to_camel(str(name)): each for name, each in require_mapping(option, given).items()}


def _replay(given: Any) -> dict[str, Any]:
    """The sampler's fields of `replay_buffer_config`."""
    _only("replay_buffer_config", given, ("type", "capacity", "alpha", "beta"))
    return {name: value for name, value in given.items() if name == "capacity"}


def _explore(given: Any) -> Any:
    """`explore` of `evaluation_config`, None if it is not in it."""
    require_mapping("evaluation_config", given)
    if others := [name for name in given if name != "explore"]:
        raise SpecError(
            f"evaluation_config contains {', '.join(map(repr, others))}, but only takes explore, env and env_config: "
            "evaluations follow the options of .evaluation(); for other data use offline_evaluation_input."
        )
    return given.get("explore")


def estimate_names(option: str, given: Any) -> list[Any]:
    """Names of estimates, from a list or RLlib's dictionary name -> {"type": class}.

    Raises:
        SpecError: an entry has more than a type.
    """
    if isinstance(given, Mapping):
        return [_estimate(f"{option}[{name!r}]", each) for name, each in given.items()]
    return [_estimate(option, each) for each in _listed(given)]


def _estimate(place: str, given: Any) -> str:
    kind = given.get("type") if isinstance(given, Mapping) else given
    if others := [key for key in given if key != "type"] if isinstance(given, Mapping) else []:
        raise SpecError(
            f"{place} contains {', '.join(map(repr, others))}, but only takes type: "
            "offline_evaluation_model_updates sets how long models are fitted."
        )
    called = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    called = called.rpartition(".")[2]
    return _ESTIMATORS.get(called, called)


def _evaluation_type(given: Any) -> list[str] | None:
    name = _choice("offline_evaluation_type", {"eval_loss": None, "is": "is", "pdis": "pdis"}, given)
    return None if name is None else [name]


def _choice(option: str, choices: Mapping[str, str | None], value: Any) -> str | None:
    if not isinstance(value, str) or value not in choices:
        raise SpecError(f"{option} is {value!r}, expected one of {', '.join(map(repr, choices))}.")
    return choices[value]


def _connectors(value: Any) -> list[Any]:
    return [_connector(each) for each in _listed(value)]


def named_connectors(value: Any) -> list[NamedCall]:
    """What is given as `learner_connector`, by names.

    Raises:
        SpecError: it holds what is neither a name nor a connector.
    """
    if value is None:
        return []
    return [
        NamedCall(name=each) if isinstance(each, str) else NamedCall(**each) for each in _connectors(value)
    ]


def _connector(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return to_import_path("learner_connector", value)
    _only("learner_connector", value, ("name", "kwargs"))
    return {**value, "name": to_import_path("learner_connector", value.get("name"))}


def _calling(hook: str, value: Any) -> list[Any]:
    """Functions as classes of callbacks with that one method."""
    from hindcast.record.callbacks import callbacks_from_function

    given = _listed(value)
    if any(not (callable(each) or isinstance(each, str)) for each in given):
        raise SpecError(
            f'{hook} is {value!r}, expected a function, its "package.module:name", or a list of them.'
        )
    return [
        f"hindcast.record.callbacks:{hook}.{path.replace(':', '.')}"
        if (path := each if isinstance(each, str) else import_path_of(each))
        else to_import_path(hook, callbacks_from_function(hook, each))
        for each in given
    ]


def _zero_as_one(value: Any) -> Any:
    return 1 if isinstance(value, int) and value == 0 else value


def _residency(value: Any) -> str:
    return "Resident" if value else "Streaming"


def _bytes(value: Any) -> Any:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else value


def require_mapping(place: str, given: Any) -> Mapping[str, Any]:
    """The dictionary that is given at a place.

    Raises:
        SpecError: it is something else.
    """
    if not isinstance(given, Mapping):
        raise SpecError(f"{place} is {given!r}, expected a dictionary.")
    return given


def _listed(given: Any) -> Sequence[Any]:
    """What is given as a list; a single value as one of it."""
    return given if isinstance(given, list | tuple) else [given]


def _only(option: str, given: Any, names: Iterable[str]) -> None:
    for name in require_mapping(option, given):
        if name not in names:
            raise SpecError(f"{option}: {name!r} is not an option here{nearest(name, names)}")


CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "env": environment_id,
    "env_config": _env_config,
    "observation_space": space_to_field,
    "action_space": space_to_field,
    "observation_filter": observation_filter,
    "num_env_runners": _zero_as_one,
    "num_learners": _zero_as_one,
    "num_cpus_per_learner": lambda value: None if value == "auto" else value,
    "callbacks_class": lambda value: [to_import_path("callbacks_class", each) for each in _listed(value)],
    "learner_class": partial(to_import_path, "learner_class"),
    **{name: partial(_calling, name) for name in OPTIONS["callbacks"] if name.startswith("on_")},
    "learner_connector": _connectors,
    "input_read_method": lambda value: (
        _READ_METHODS.get(value, "RayData") if isinstance(value, str) else "RayData"
    ),
    "input_read_method_kwargs": _read_kwargs,
    "input_read_sample_batches": lambda value: "SampleBatch" if value else None,
    "map_batches_kwargs": _data_workers,
    "sampler": partial(_section, "sampler"),
    "input_prepare": partial(_section, "input_prepare"),
    "replay_buffer_config": _replay,
    "materialize_data": _residency,
    "materialize_mapped_data": _residency,
    "prelearner_class": partial(to_import_path, "prelearner_class"),
    "prelearner_use_recorded_module_states": lambda value: "recorded" if value else "zero",
    "offline_data_class": partial(to_import_path, "offline_data_class"),
    "output_write_episodes": lambda value: "Episodes" if value else "Columns",
    "output_write_method": partial(_choice, "output_write_method", _WRITE_METHODS),
    "output_max_file_size": _bytes,
    "evaluation_interval": lambda value: value or None,
    "evaluation_config": _explore,
    "offline_evaluation_interval": lambda value: value or None,
    "offline_evaluation_input": lambda value: [value] if isinstance(value, str | Path) else value,
    "offline_evaluation_type": _evaluation_type,
    "off_policy_estimation_methods": lambda value: (
        estimate_names("off_policy_estimation_methods", value) or None
    ),
    "custom_evaluation_function": partial(to_import_path, "custom_evaluation_function"),
    "model_config": model_fields,
    "rl_module_spec": module_fields,
}
"""How the value of an option becomes that of its field, where it is not the same; None leaves the field out."""
