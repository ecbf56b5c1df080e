"""The data of a training: what its inputs ask for, opened once, before there is any learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple, Protocol

from hindcast.api import EnvironmentSpec, OfflineTraining
from hindcast.api.input import InputSource
from hindcast.api.spelling import IN_PYTHON
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.prepare.opening import OpenedData, combine_datasets, differing_leaves, open_reading
from hindcast.datasets.prepare.partitions import NOTE_ON_ACTIONS
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.spaces import space_to_json
from hindcast.errors import SpecError
from hindcast.pipeline.offline_data import Source, has_own_reader
from hindcast.pipeline.prelearner import OfflinePreLearner, prelearner_class
from hindcast.pipeline.rllib_prelearner import is_in_rllib_form
from hindcast.report.events import Progress, Reporter
from hindcast.run.claim import title
from hindcast.run.held_out_evaluation import merge_datasets
from hindcast.run.offline_trainer import make_algorithm
from hindcast.run.spaces import check_spaces, environment_spaces, has_float_actions

MAPPED_FORMATS: Final = ("Text", "Images", "Binary")
"""Formats that hold no timesteps."""
_METHODS: Final = {
    "Parquet": "read_parquet",
    "JSON": "read_json",
    "SampleBatch": "read_json",
    "CSV": "read_csv",
    "TFRecord": "read_tfrecords",
}
_BY_SUFFIX: Final = {".json": "read_json", ".jsonl": "read_json", ".csv": "read_csv", ".txt": "read_text"}


class References(Protocol):
    """Finds the resources that a resource refers to."""

    def dataset(self, recording: str) -> str | None:
        """Path of what an OfflineRecording wrote, or will write; None where there is none of that name."""

    def policy(self, training: str) -> str:
        """Path of an OfflineTraining's checkpoint.

        Raises:
            DataError: there is none.
        """


class Input(NamedTuple):
    """A recorded input of a training.

    Attributes:
        reading: what is read, and how.
        weight: share of batches relative to other inputs' weights.
        top: share of the episodes, those with the highest return; None for all.
        found: its data; None until they are open.
    """

    reading: Reading
    weight: float | None = None
    top: float | None = None
    opened_data: OpenedData | None = None

    @property
    def path(self) -> str:
        """Where the data are that are opened: what was prepared, or what the input names."""
        return str(self.reading.paths[0] if self.opened_data is None else self.opened_data.paths[0])

    @property
    def dataset(self) -> Dataset:
        """The episodes to train on, once they are open."""
        assert self.opened_data is not None
        return self.opened_data.dataset if self.top is None else self.opened_data.dataset.filter(top=self.top)


def inputs_of(resource: OfflineTraining, references: References) -> list[Input]:
    """The recorded inputs, not open yet; a reference is the path of its recording's dataset.

    Raises:
        SpecError: a reference to a recording that is not there, or files without timesteps and no class that maps them.
    """
    return [
        _input(resource, index, references)
        for index, source in enumerate(resource.spec.input)
        if source.sampler is None
    ]


def open_inputs(
    resource: OfflineTraining,
    inputs: Sequence[Input],
    reporter: Reporter | None = None,
    check: Callable[[], None] = lambda: None,
    ray_options: Mapping[str, Any] | None = None,
) -> list[Input]:
    """The recorded inputs, open, and prepared where they are not whole episodes in order.

    What preparing found is reported as notes.

    Args:
        check: called now and then; what it raises ends the preparation, which resumes from there the next time.
        ray_options: Ray's, for the tasks that prepare what is large.

    Raises:
        UserError: what keeps the data from being used.
    """
    name, listener = title(resource), reporter or Reporter()

    def progress(_: str, done: int, total: int) -> None:
        listener.progress(Progress(name, "Preparing the data", done, total, "pieces"))

    def note(message: str) -> None:
        listener.note(name, message)

    opened: list[Input] = []
    for index, one in enumerate(inputs):
        reading = one.reading
        watch = Hooks(progress, note, check)
        if index == 0 and reading.options.mapper is None:
            watch = replace(watch, accept=partial(check_spaces, resource, name=str(reading.paths[0])))
        found = open_reading(reading, hooks=watch, ray_options=ray_options)
        for said in (*found.unfinished_notes, *found.notes):
            if said != NOTE_ON_ACTIONS or has_float_actions(resource, found.dataset.spec):
                note(f"{reading.paths[0]}: {said}")
        opened.append(one._replace(opened_data=found))
    if len(opened) > 1 and all(one.weight is None for one in opened):
        return _of_the_same_columns(opened, note)
    return opened


def _of_the_same_columns(inputs: Sequence[Input], note: Callable[[str], None]) -> list[Input]:
    """Inputs that are to be one dataset, without the columns that only some of them have.

    With a `top`, which may need them, `as_one` leaves them out.
    """
    found = [one.opened_data for one in inputs if one.opened_data is not None]
    left_out = differing_leaves([one.dataset for one in found])
    if left_out:
        note(f"not all inputs have the columns {', '.join(sorted(left_out))}, so they are left out")
    if not left_out or any(one.top is not None for one in inputs):
        return list(inputs)
    return [one._replace(opened_data=each.without(left_out)) for one, each in zip(inputs, found, strict=True)]


def sources_of(inputs: Sequence[Input]) -> list[Source]:
    """What is trained on, of inputs that are open; nothing of others, which a finished training does not need.

    With weights, every input is a separate source; without, all are one dataset.

    Raises:
        SpecError: some have a weight and others none.
        DataError: inputs that make one dataset differ in columns or spaces.
    """
    found = [one.opened_data for one in inputs if one.opened_data is not None]
    weights = [one.weight for one in inputs if one.weight is not None]
    if not found:
        return []
    if not weights:
        has_shares = any(one.top is not None for one in inputs)
        dataset = merge_datasets([one.dataset for one in inputs]) if has_shares else combine_datasets(found)
        return [Source(", ".join(one.reading.name for one in inputs), dataset)]
    if len(weights) < len(inputs):
        raise SpecError("spec.input: some inputs have a weight and others none; give all a weight, or none.")
    return [
        Source(one.reading.name, one.dataset, weight) for one, weight in zip(inputs, weights, strict=True)
    ]


def _input(resource: OfflineTraining, index: int, references: References) -> Input:
    pipeline = resource.spec.pipeline
    where = f"{title(resource)}: spec.input[{index}]"
    source = resolve_reader(resource, resource.spec.input[index], where)
    path = _path(where, source, references)
    options = training_options(resource, source)
    if not maps_rows(resource, source):
        return Input(Reading.from_input(source, path, mapper_given=options), source.weight, source.top)
    if pipeline.pre_learner is None:
        raise SpecError(
            f"{where}.format is {source.format}: name the class that makes episodes of it in spec.pipeline.preLearner."
        )
    reading = Reading.from_input(source, path, pipeline.pre_learner, pipeline.pre_learner_kwargs, options)
    return Input(reading, source.weight, source.top)


def _path(where: str, source: InputSource, references: References) -> str:
    if source.path is not None:
        return source.path
    assert source.recording_ref is not None
    path = references.dataset(source.recording_ref.name)
    if path is None:
        raise SpecError(
            f"{where}.recordingRef: there is no OfflineRecording named {source.recording_ref.name!r} here."
        )
    return path


def resolve_reader(resource: OfflineTraining, source: InputSource, where: str) -> InputSource:
    """The input as it is read: by Ray Data, where a class of the user's works on rows.

    Raises:
        SpecError: a class that works on rows, and what has no effect then.
    """
    pipeline = resource.spec.pipeline
    if has_own_reader(pipeline):
        return _by_ray(source, str(pipeline.offline_data), where)
    if source.format in (*MAPPED_FORMATS, "RayData") or not is_in_rllib_form(prelearner_class(pipeline)):
        return source
    suffix = PurePosixPath(source.path or "").suffix
    method = _METHODS.get(source.format) or _BY_SUFFIX.get(suffix, "read_parquet")
    return _by_ray(source, method, where)


def maps_rows(resource: OfflineTraining, source: InputSource) -> bool:
    """Whether the pre-learner makes the episodes of an input."""
    kind = prelearner_class(resource.spec.pipeline)
    overrides = kind.map_rows.__func__ is not OfflinePreLearner.map_rows.__func__  # type: ignore[attr-defined]
    return source.format in MAPPED_FORMATS or (
        source.format == "RayData" and (is_in_rllib_form(kind) or overrides)
    )


def training_options(resource: OfflineTraining, source: InputSource) -> dict[str, Any]:
    """What `TrainingConfig` holds of a training, as JSON; nothing for classes that do not ask."""
    spec = resource.spec
    if not (is_in_rllib_form(prelearner_class(spec.pipeline)) or has_own_reader(spec.pipeline)):
        return {}
    spaces: list[dict[str, Any] | None]
    if spec.environment is not None:
        found = environment_spaces(spec.environment)
        spaces = [space_to_json(found.observation), space_to_json(found.action)]
    else:
        given = (spec.observation_space, spec.action_space)
        spaces = [
            None if each is None else each.model_dump(mode="json", by_alias=True, exclude_none=True)
            for each in given
        ]
    return {
        "options": {
            **make_algorithm(resource).options.model_dump(mode="json"),
            **_of_data(resource, source),
            "seed": spec.seed,
            "env": None if spec.environment is None else spec.environment.id,
            "env_config": {} if spec.environment is None else dict(spec.environment.kwargs),
            "is_multi_agent": False,
            "policies_to_train": None,
            "num_learners": spec.learners.replicas,
        },
        "connectors": [each.model_dump() for each in spec.pipeline.connectors],
        "model": spec.model.model_dump(mode="json", by_alias=True, context=IN_PYTHON),
        "environment": (spec.environment or EnvironmentSpec(id="none")).model_dump(
            mode="json", by_alias=True
        ),
        "observationSpace": spaces[0],
        "actionSpace": spaces[1],
        "seed": spec.seed,
    }


def _of_data(resource: OfflineTraining, source: InputSource) -> dict[str, Any]:
    options = dict(source.read_options)
    method, size = options.pop("method", None), options.pop("batch_size", None)
    return {
        "input_": source.path,
        "input_read_method": method,
        "input_read_method_kwargs": options,
        "input_read_episodes": False,
        "input_read_sample_batches": resource.spec.input[0].format == "SampleBatch",
        "input_read_schema": dict(source.schema_map),
        "input_read_batch_size": size,
        "input_compress_columns": source.compress_columns,
        "ignore_final_observation": source.ignore_final_observation,
        "prelearner_class": resource.spec.pipeline.pre_learner,
        "prelearner_kwargs": dict(resource.spec.pipeline.pre_learner_kwargs),
        "map_batches_kwargs": {},
        "iter_batches_kwargs": {},
        "dataset_num_iters_per_learner": resource.spec.pipeline.dataset_num_iters_per_learner,
        "materialize_data": False,
        "materialize_mapped_data": False,
    }


def _by_ray(source: InputSource, method: str, where: str) -> InputSource:
    for name in ("columns", "filter"):
        if getattr(source, name):
            raise SpecError(
                f"{where}.{name} has no effect: your class that maps rows gets everything in the files; leave "
                "it out, and select there."
            )
    options = {"method": method, **source.read_options}
    return source.model_copy(update={"format": "RayData", "read_options": options})
