"""Inputs of a training: how each input is read, and its data, which are opened once, before the learner exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hindcast.api import OfflineTraining
from hindcast.api.input import InputSource, MissingRule
from hindcast.api.pipeline import PipelineSpec
from hindcast.data_formats import AUTO, format_traits
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.prepare.opening import (
    OpenedData,
    combine_datasets,
    find_differing_leaves,
    open_reading,
)
from hindcast.datasets.prepare.partitions import NOTE_ON_ACTIONS, NOTE_ON_NORMALIZED_ACTIONS
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError, MissingDataError, SpecError
from hindcast.formatting import integer, plural
from hindcast.models.missing_values import OTHER_NAMES
from hindcast.models.rl_module import module_class_of
from hindcast.pipeline.connector_factory import check_connector_classes
from hindcast.pipeline.offline_data import Source, has_own_reader, offline_data_class
from hindcast.pipeline.prelearner import (
    OfflinePreLearner,
    maps_any_rows,
    prelearner_class,
    prelearner_path,
)
from hindcast.ray_session import shared_ray
from hindcast.record.episode_callbacks import callback_class
from hindcast.report.events import Progress, Reporter
from hindcast.run.claim import title
from hindcast.run.evaluation.held_out_evaluation import merge_datasets
from hindcast.run.spaces import has_float_actions
from hindcast.run.training.options_document import read_method, training_options
from hindcast.user_code import is_user_code


class References(Protocol):
    """Resolves the references of a resource."""

    def dataset(self, recording: str) -> str | None:
        """Return the path of an OfflineRecording's dataset, which may not exist yet; None if the name is unknown."""

    def policy(self, training: str) -> str:
        """Return the path of an OfflineTraining's checkpoint.

        Raises:
            DataError: there is no checkpoint.
        """


class Input(NamedTuple):
    """A recorded input of a training.

    Attributes:
        reading: paths to read, and how to read them.
        weight: share of batches relative to other inputs' weights.
        top: fraction of episodes to use, with the highest returns first; None uses all.
        opened_data: the data; None until they are open.
        field: field of the resource that names the data; empty if none does.
    """

    reading: Reading
    weight: float | None = None
    top: float | None = None
    opened_data: OpenedData | None = None
    field: str = ""

    @property
    def path(self) -> str:
        """Path of the data in the resource, or of the dataset that it refers to."""
        return str(self.reading.paths[0])

    @property
    def dataset(self) -> Dataset:
        """Episodes to train on; the input must be open."""
        assert self.opened_data is not None
        return self.opened_data.dataset if self.top is None else self.opened_data.dataset.filter(top=self.top)


def resolve_inputs(resource: OfflineTraining, references: References) -> list[Input]:
    """Return the recorded inputs, not yet open, with references resolved to paths.

    Raises:
        SpecError: a reference names an unknown recording, an input needs a user's class that maps its rows to
            episodes, and `pipeline.preLearner` does not name one, or a user's class has a method that nothing calls.
        UserCodeError: importing a user's class raised.
    """
    pipeline = resource.spec.pipeline
    pre_learner_class = prelearner_class(pipeline)
    offline_data_class(pipeline)
    module_class_of(resource.spec.model.module_class)
    check_connector_classes(pipeline.connectors)
    for path in resource.spec.callbacks:
        callback_class(path)
    return [
        _make_input(resource, index, references, pre_learner_class)
        for index, source in enumerate(resource.spec.input)
        if source.sampler is None
    ]


def open_inputs(
    resource: OfflineTraining,
    inputs: Sequence[Input],
    reporter: Reporter | None = None,
    check: Callable[[], None] = lambda: None,
    ray_options: Mapping[str, Any] | None = None,
    *,
    cache: str | None = None,
) -> list[Input]:
    """Open the recorded inputs; prepare inputs that are not whole episodes in order.

    Findings of the preparation are reported as notes.

    Args:
        resource: the training.
        inputs: inputs of the training from `resolve_inputs`.
        reporter: receives progress and notes.
        check: called regularly; an exception from it ends the preparation, which a later call continues.
        ray_options: options of the Ray tasks that prepare large data.
        cache: folder for prepared data; None takes the default.

    Raises:
        UserError: the data cannot be used.
    """
    listener = reporter or Reporter()
    name = title(resource)

    def progress(_: str, done: int, total: int) -> None:
        listener.progress(Progress(name, "Preparing the data", done, total, "pieces"))

    def note(message: str) -> None:
        listener.note(name, message)

    def open_one(input_: Input) -> Input:
        reading = input_.reading
        hooks = Hooks(progress, note, check)
        try:
            opened_data = open_reading(reading, cache=cache, hooks=hooks, ray_options=ray_options)
        except MissingDataError as error:
            error.locate(input_.field)
            raise
        _refuse_missing_values(opened_data, resource.spec.missing_rules, reading.name)
        for finding in opened_data.all_notes:
            # The units of actions matter only if these are floats, which can be normalised.
            is_about_units = finding in (NOTE_ON_ACTIONS, NOTE_ON_NORMALIZED_ACTIONS)
            if not is_about_units or has_float_actions(resource, opened_data.dataset.spec):
                note(f"{reading.paths[0]}: {finding}")
        return input_._replace(opened_data=opened_data)

    with shared_ray():
        opened_inputs = [open_one(input_) for input_ in inputs]
    _refuse_mixed_times(opened_inputs)
    if len(opened_inputs) > 1 and all(input_.weight is None for input_ in opened_inputs):
        return _with_common_columns(opened_inputs, note)
    return opened_inputs


def _refuse_missing_values(data: OpenedData, rules: Mapping[str, MissingRule], name: str) -> None:
    """Refuse data with missing values of observations that no rule replaces.

    Raises:
        DataError: there are such values; the error says how many of each column.
    """
    leaves = data.dataset.spec.leaves
    leaf_by_element = {
        element: leaf
        for leaf in leaves
        for element in leaves[leaf].element_names(leaf)
        if root(leaf) == Columns.OBS
    }
    missing = {}
    for element, finding in data.missing.items():
        leaf = leaf_by_element.get(element, Columns.OBS)
        if not {element, leaf, leaf.removeprefix(f"{Columns.OBS}/"), OTHER_NAMES} & rules.keys():
            missing[element] = finding
    if not missing:
        return
    first_element, first = next(iter(missing.items()))
    counts = [f"{integer(finding.count)} no {element}" for element, finding in list(missing.items())[1:4]]
    more = f", and so on for {len(missing) - 4} more columns" if len(missing) > 4 else ""
    raise DataError(
        f"{name}: {integer(first.count)} of {plural(data.dataset.num_steps, 'row')} have no {first_element} (first: "
        f"row {first.row}){''.join(f', {count}' for count in counts)}{more}. Set prepare.missing, such as "
        f"`missing: {{{first_element}: CarryForward}}` or `{{'*': Median}}`, or leave the column out of `schema`.",
        mentions=("prepare.missing",),
    )


def _refuse_mixed_times(inputs: Sequence[Input]) -> None:
    """Refuse a mixture of inputs with and without durations of steps: gamma would discount time only in some."""
    has_times = [
        input_.opened_data is not None and Columns.DELTA_T in input_.opened_data.dataset.spec.leaves
        for input_ in inputs
    ]
    if any(has_times) and not all(has_times):
        raise DataError(
            f"{inputs[has_times.index(False)].path} has no times, unlike {inputs[has_times.index(True)].path}, so that "
            "gamma would discount steps in one and time in the other: set time for all inputs, or for none.",
            mentions=("time",),
        )


def _with_common_columns(inputs: Sequence[Input], note: Callable[[str], None]) -> list[Input]:
    """Drop columns that only some inputs have, and report them, because all inputs form one dataset.

    If an input has `top`, which may need these columns to select episodes, `merge_datasets` drops them later.
    """
    opened_data = [input_.opened_data for input_ in inputs if input_.opened_data is not None]
    differing = find_differing_leaves([data.dataset for data in opened_data])
    if differing:
        note(f"columns {', '.join(sorted(differing))} are left out, because not all inputs have them")
    if not differing or any(input_.top is not None for input_ in inputs):
        return list(inputs)
    return [
        input_._replace(opened_data=data.without(differing))
        for input_, data in zip(inputs, opened_data, strict=True)
    ]


def data_by_name(inputs: Sequence[Input]) -> dict[str, OpenedData | None]:
    """Return the data of each input by its path; if several inputs have one path, all but the first are numbered."""
    named_data: dict[str, OpenedData | None] = {}
    for number, input_ in enumerate(inputs, 1):
        name = input_.path if input_.path not in named_data else f"{input_.path} (input {number})"
        named_data[name] = input_.opened_data
    return named_data


def make_sources(inputs: Sequence[Input]) -> list[Source]:
    """Return the sources of a training: one per input if inputs have weights, else a single merged one.

    Empty if the inputs are not open, because the training has finished.

    Raises:
        SpecError: some inputs have a weight and others have none.
        DataError: inputs that form one dataset differ in columns or spaces.
    """
    opened_data = [input_.opened_data for input_ in inputs if input_.opened_data is not None]
    weights = [input_.weight for input_ in inputs if input_.weight is not None]
    if not opened_data:
        return []
    if not weights:
        has_top = any(input_.top is not None for input_ in inputs)
        dataset = (
            merge_datasets([input_.dataset for input_ in inputs])
            if has_top
            else combine_datasets(opened_data)
        )
        return [Source(", ".join(input_.reading.name for input_ in inputs), dataset)]
    if len(weights) < len(inputs):
        raise SpecError(
            "some inputs have a weight and others have none; set a weight for all of them, or for none.",
            field="spec.input",
        )
    return [
        Source(input_.reading.name, input_.dataset, weight)
        for input_, weight in zip(inputs, weights, strict=True)
    ]


def _make_input(
    resource: OfflineTraining,
    index: int,
    references: References,
    pre_learner_class: type[OfflinePreLearner],
) -> Input:
    """Return input `index` of the training, not yet open."""
    pipeline = resource.spec.pipeline
    field = f"spec.input[{index}]"
    source = _resolve_reader(pipeline, resource.spec.input[index], field)
    path = _resolve_path(field, source, references)
    path_field = f"{field}.path" if source.path is not None else f"{field}.recordingRef"
    options = training_options(resource, resource.spec.input[index])
    is_mapped = _is_mapped(source) or (
        source.format == "RayData" and (maps_any_rows(pipeline) or is_user_code(pre_learner_class.map_rows))
    )
    if not is_mapped:
        reading = Reading.from_input(source, path, mapper_training=options)
        return Input(reading, source.weight, source.top, field=path_field)
    mapper = prelearner_path(pipeline)
    if mapper is None:
        raise SpecError(
            f"is {source.format}: set spec.pipeline.preLearner to the class that converts its rows to "
            "episodes.",
            field=f"{field}.format",
            mentions=("spec.pipeline.preLearner",),
        )
    reading = Reading.from_input(source, path, mapper, pipeline.pre_learner_kwargs, options)
    return Input(reading, source.weight, source.top, field=path_field)


def _resolve_path(field: str, source: InputSource, references: References) -> str:
    if source.path is not None:
        return source.path
    assert source.recording_ref is not None
    path = references.dataset(source.recording_ref.name)
    if path is None:
        raise SpecError(
            f"there is no OfflineRecording named {source.recording_ref.name!r} here.",
            field=f"{field}.recordingRef",
        )
    return path


def _resolve_reader(pipeline: PipelineSpec, source: InputSource, field: str) -> InputSource:
    """Return the input, with format RayData if a class of the user's reads the files or maps rows of any format.

    Args:
        pipeline: section of the training.
        source: an input of the training.
        field: path of the input, for messages.

    Raises:
        SpecError: the user's class would make `columns` or `filter` of the input ineffective.
    """
    if has_own_reader(pipeline):
        return _read_with_ray(source, str(pipeline.offline_data), field)
    if _is_mapped(source) or source.format == "RayData" or not maps_any_rows(pipeline):
        return source
    return _read_with_ray(source, read_method(source), field)


def _is_mapped(source: InputSource) -> bool:
    """Return True if the format has no timesteps: a class of the user's maps its rows to episodes."""
    return source.format != AUTO and not format_traits()[source.format].has_timesteps


def _read_with_ray(source: InputSource, method: str, field: str) -> InputSource:
    for name in ("columns", "filter"):
        if getattr(source, name):
            raise SpecError(
                "has no effect: your class that maps rows receives everything in the files; remove "
                "the field, and select in the class.",
                field=f"{field}.{name}",
            )
    options = {**source.read_options, "method": method}
    return source.model_copy(update={"format": "RayData", "read_options": options})
