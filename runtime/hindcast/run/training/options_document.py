"""The options of a training as JSON. User classes written for RLlib receive them as a `TrainingConfig`."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

from hindcast.api import EnvironmentSpec, OfflineTraining
from hindcast.api.input import InputSource
from hindcast.api.quantity import parse_bytes
from hindcast.api.spelling import IN_PYTHON
from hindcast.code_digest import digest_code
from hindcast.data_formats import format_traits
from hindcast.episodes.spaces import space_from_json, space_to_json
from hindcast.learn.model_defaults import complete_model
from hindcast.pipeline.offline_data import has_own_reader
from hindcast.pipeline.prelearner import maps_any_rows
from hindcast.record.environments import environment_spaces
from hindcast.run.training.algorithm import make_algorithm
from hindcast.user_code import import_object

_READ_METHODS_BY_SUFFIX: Final = {
    ".json": "read_json",
    ".jsonl": "read_json",
    ".csv": "read_csv",
    ".txt": "read_text",
}
"""File suffix -> method of Ray Data, for formats that do not determine one."""


def read_method(source: InputSource) -> str:
    """Return the method of Ray Data that reads an input's files."""
    traits = format_traits().get(source.format)
    if (method := source.read_options.get("method")) is not None:
        return str(method)
    if traits and traits.ray_methods:
        return traits.ray_methods[0]
    return _READ_METHODS_BY_SUFFIX.get(PurePosixPath(source.path or "").suffix, "read_parquet")


def training_options(resource: OfflineTraining, source: InputSource) -> dict[str, Any]:
    """Return the content of a `TrainingConfig` as JSON; empty unless a class of the user's reads it."""
    spec = resource.spec
    if not (maps_any_rows(spec.pipeline) or has_own_reader(spec.pipeline)):
        return {}
    algorithm = make_algorithm(resource)
    spaces: list[dict[str, Any] | None]
    if spec.environment is not None:
        env_spaces = environment_spaces(spec.environment)
        spaces = [space_to_json(env_spaces.observation), space_to_json(env_spaces.action)]
    else:
        space_specs = (spec.observation_space, spec.action_space)
        spaces = [
            None if space is None else space.model_dump(mode="json", by_alias=True, exclude_none=True)
            for space in space_specs
        ]
    model = complete_model(algorithm, spec.model, None if spaces[1] is None else space_from_json(spaces[1]))
    return {
        "options": {
            **algorithm.options.model_dump(mode="json"),
            **_data_options(resource, source),
            "seed": spec.seed,
            "env": None if spec.environment is None else spec.environment.id,
            "env_config": {} if spec.environment is None else dict(spec.environment.kwargs),
            "is_multi_agent": False,
            "policies_to_train": None,
            "num_learners": spec.learners.replicas,
        },
        "connectors": [connector.model_dump() for connector in spec.pipeline.connectors],
        "model": model.model_dump(mode="json", by_alias=True, context=IN_PYTHON),
        "environment": (spec.environment or EnvironmentSpec(id="none")).model_dump(
            mode="json", by_alias=True
        ),
        "observationSpace": spaces[0],
        "actionSpace": spaces[1],
        "seed": spec.seed,
        "code": _digest_code(resource),
    }


def _digest_code(resource: OfflineTraining) -> dict[str, str]:
    """Return the digests of the user's classes and functions that a pre-learner may call, by path."""
    pipeline = resource.spec.pipeline
    buffer = pipeline.pre_learner_buffer
    paths_by_field: dict[str, list[str | None]] = {
        "spec.pipeline.preLearner": [pipeline.pre_learner],
        "spec.pipeline.preLearnerBuffer.name": [None if buffer is None else buffer.name],
        "spec.pipeline.connectors": [connector.name for connector in pipeline.connectors],
        "spec.model.moduleClass": [resource.spec.model.module_class],
    }
    return {
        path: digest_code(import_object(path, field)).value
        for field, paths in paths_by_field.items()
        for path in paths
        if path is not None and ":" in path
    }


def _data_options(resource: OfflineTraining, source: InputSource) -> dict[str, Any]:
    options = {name: value for name, value in source.read_options.items() if name != "method"}
    batch_size, buffer = options.pop("batch_size", None), resource.spec.pipeline.pre_learner_buffer
    return {
        "input_": source.path,
        "input_read_method": read_method(source),
        "input_read_method_kwargs": options,
        "input_read_episodes": False,
        "input_read_sample_batches": source.format == "SampleBatch",
        "input_read_schema": dict(source.schema_map),
        "input_read_batch_size": batch_size,
        "input_filesystem": None,
        "input_filesystem_kwargs": {},
        "episode_lookback_horizon": 1,
        "input_compress_columns": source.compress_columns,
        "ignore_final_observation": source.ignore_final_observation,
        "prelearner_class": resource.spec.pipeline.pre_learner,
        "prelearner_kwargs": dict(resource.spec.pipeline.pre_learner_kwargs),
        "prelearner_buffer_class": None if buffer is None else buffer.name,
        "prelearner_buffer_kwargs": {} if buffer is None else dict(buffer.kwargs),
        "map_batches_kwargs": _map_batches_kwargs(resource),
        "iter_batches_kwargs": {},
        "dataset_num_iters_per_learner": resource.spec.pipeline.dataset_num_iters_per_learner,
        "materialize_data": resource.spec.pipeline.residency == "Resident",
        "materialize_mapped_data": False,
    }


def _map_batches_kwargs(resource: OfflineTraining) -> dict[str, Any]:
    """Return the data workers as arguments of Ray Data's `map_batches`."""
    workers = resource.spec.pipeline.data_workers
    low, high = workers.interval
    memory = None if workers.memory is None else parse_bytes(workers.memory)
    resources = {"num_cpus": workers.cpus, "num_gpus": workers.gpus, "memory": memory}
    return {
        "concurrency": low if low == high else [low, high],
        **{name: value for name, value in resources.items() if value},
    }
