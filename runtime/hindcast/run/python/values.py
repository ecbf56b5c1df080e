"""Values of the builder's options as the fields of a resource; what is wrong with them otherwise, in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hindcast.api.sentences import nearest
from hindcast.errors import SpecError
from hindcast.run.python.model_config import model_fields, observation_filter
from hindcast.run.python.user_objects import environment_id, importable

Options = Mapping[str, Any]

_FORMATS = {
    "read_parquet": "Parquet",
    "read_json": "JSON",
    "read_csv": "CSV",
    "read_text": "Text",
    "read_images": "Images",
    "read_binary_files": "Binary",
    "read_tfrecords": "TFRecord",
}
_SIZES = ("override_num_blocks", "concurrency")  # pieces are as large as suits the format
_AS_GIVEN = {
    "input_read_schema": "schema",
    "input_compress_columns": "compressColumns",
    "actions_in_input_normalized": "actionsNormalized",
}
_SCHEMES = {"gcs": "gs://", "s3": "s3://", "abs": "abfss://"}
_WRITE_METHODS = {"write_parquet": None, "write_json": "JSON", "write_csv": "CSV"}


def plain(value: Any) -> Any:
    """Tuples as lists, figures of NumPy as Python's: what YAML could have said."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if type(value).__module__ == "numpy":
        return plain(value.tolist())
    return value


def space(value: Any) -> Any:
    """A Gymnasium space as the resource's JSON; JSON and None stay."""
    if value is None or isinstance(value, Mapping):
        return value
    from hindcast.store.spaces import space_to_json

    return space_to_json(value)


def sources(options: Options) -> list[dict[str, Any]]:
    """`spec.input` of `input_` and what goes with it."""
    given = options["input_"]
    weights = given if isinstance(given, Mapping) else dict.fromkeys([given] if _is_path(given) else given)
    common = _reading(options)
    filesystem = options.get("input_filesystem")
    return [
        {**_source(path, filesystem), **({} if weight is None else {"weight": weight}), **common}
        for path, weight in weights.items()
    ]


def located(path: Any, filesystem: Any) -> str:
    """A path with the scheme of the named file system, unless it has one of its own.

    Raises:
        SpecError: there is no such file system.
    """
    text = str(path)
    if filesystem is None or "://" in text:
        return text
    if filesystem not in _SCHEMES:
        raise SpecError(
            f"the file system is {filesystem!r}: a resource names it in the path, as in s3://bucket/folder; "
            f"here {', '.join(_SCHEMES)} are known."
        )
    return _SCHEMES[filesystem] + text.lstrip("/")


def data_workers(given: Options) -> dict[str, Any]:
    """`spec.pipeline.dataWorkers` of `map_batches_kwargs`."""
    names = {"num_cpus": "cpus", "num_gpus": "gpus", "memory": "memory"}
    ours = {"concurrency", "zero_copy_batch", *names}
    _only("map_batches_kwargs", given, ours)
    workers = {names[name]: value for name, value in given.items() if name in names}
    concurrency = given.get("concurrency")
    if isinstance(concurrency, tuple | list):
        workers["minReplicas"], workers["maxReplicas"] = concurrency
    elif concurrency is not None:
        workers["replicas"] = concurrency
    return workers


def prefetch_batches(given: Options) -> Any:
    """`spec.pipeline.prefetchBatches` of `iter_batches_kwargs`; windows stand for the shuffle buffer."""
    _only(
        "iter_batches_kwargs", given, {"prefetch_batches", "local_shuffle_buffer_size", "local_shuffle_seed"}
    )
    return given.get("prefetch_batches", 2)


def explore(given: Options) -> Any:
    """`explore` of `evaluation_config`, None where it is not in it."""
    _only("evaluation_config", given, {"explore"})
    return given.get("explore")


def written_format(method: Any) -> str | None:
    """`spec.output.format` of Ray Data's method; None where another option says it.

    Raises:
        SpecError: there is no such format.
    """
    if method not in _WRITE_METHODS:
        allowed = ", ".join(map(repr, _WRITE_METHODS))
        raise SpecError(f"output_write_method is {method!r}: allowed are {allowed}.")
    return _WRITE_METHODS[method]


def file_size(value: Any) -> Any:
    """Bytes as a quantity."""
    return str(int(value)) if isinstance(value, float) else value


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "env": environment_id,
    "observation_space": space,
    "action_space": space,
    "observation_filter": observation_filter,
    "num_env_runners": lambda value: max(value, 1) if isinstance(value, int) else value,
    "num_learners": lambda value: max(value, 1) if isinstance(value, int) else value,
    "num_cpus_per_learner": lambda value: None if value == "auto" else value,
    "learner_connector": lambda value: [
        importable("learner_connector", each)
        for each in (value if isinstance(value, list | tuple) else [value])
    ],
    "map_batches_kwargs": data_workers,
    "iter_batches_kwargs": prefetch_batches,
    "prelearner_class": lambda value: importable("prelearner_class", value),
    "offline_data_class": lambda value: importable("offline_data_class", value),
    "custom_evaluation_function": lambda value: importable("custom_evaluation_function", value),
    "output_write_episodes": lambda value: "Episodes" if value else "Columns",
    "output_write_method": written_format,
    "output_max_file_size": file_size,
    "evaluation_interval": lambda value: value or None,
    "evaluation_config": explore,
    "model_config": model_fields,
    "seed": lambda value: 0 if value is None else value,
}
"""How the value of an option becomes that of its field, where it is not the same."""


def _is_path(given: Any) -> bool:
    return isinstance(given, str) or hasattr(given, "__fspath__")


def _source(path: Any, filesystem: Any) -> dict[str, Any]:
    if path == "sampler":
        return {"sampler": {}}
    if not _is_path(path):
        raise SpecError(f"input_ holds {path!r}, expected a path: convert other sources to a dataset first.")
    return {"path": located(path, filesystem)}


def _reading(options: Options) -> dict[str, Any]:
    """How all inputs are read."""
    given = plain(options.get("input_read_method_kwargs") or {})
    if not isinstance(given, Mapping):
        raise SpecError(f"input_read_method_kwargs is {given!r}, expected a dictionary.")
    fields = {
        name: value for name, value in given.items() if name in ("columns", "filter") and value is not None
    }
    rest = {name: value for name, value in given.items() if name not in (*_SIZES, "columns", "filter")}
    if rest:
        fields["readOptions"] = rest
    if form := _format(options):
        fields["format"] = form
    for option, name in _AS_GIVEN.items():
        if options.get(option) is not None:
            fields[name] = plain(options[option])
    if options.get("ignore_final_observation"):
        fields["ignoreFinalObservation"] = True
    return fields


def _format(options: Options) -> str | None:
    if options.get("input_read_sample_batches"):
        return "SampleBatch"
    method = options.get("input_read_method")
    if method is not None and method not in _FORMATS:
        raise SpecError(f"input_read_method is {method!r}: allowed are {', '.join(_FORMATS)}.")
    return _FORMATS.get(method or "")


def _only(option: str, given: Any, names: set[str]) -> None:
    if not isinstance(given, Mapping):
        raise SpecError(f"{option} is {given!r}, expected a dictionary.")
    for name in given:
        if name not in names:
            raise SpecError(f"{option}: {name!r} has no meaning here{nearest(name, names)}")
