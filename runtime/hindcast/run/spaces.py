"""Observation and action space of a training, from its environment, its resource or its data."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym

from hindcast import formatting
from hindcast.api import OfflineTraining
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.inspection.action_units import find_wrong_units
from hindcast.datasets.inspection.guessing import guess_spaces
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space, space_from_json, space_to_json
from hindcast.errors import Problem, SpecError
from hindcast.formats.spec import DataSpec
from hindcast.models.preprocessing import is_float_box
from hindcast.pipeline.offline_data import Source
from hindcast.record.environments import Spaces, environment_spaces
from hindcast.run.claim import title


def determine_spaces(
    resource: OfflineTraining, sources: Sequence[Source], *, check_units: bool
) -> tuple[Spaces, list[Problem]]:
    """Return the spaces of the environment or, without an environment, of the resource or of the data.

    Elements of vectors have the names of the data's columns.

    Args:
        resource: the training.
        sources: its recorded data.
        check_units: whether to read a sample of the actions, and note those whose values contradict their units.

    Returns:
        The spaces, and notes on them and on the actions.

    Raises:
        SpecError: the observation or action space is unknown.
        DataError: a file is damaged.
    """
    spec, notes = resource.spec, list[Problem]()
    if spec.environment is not None:
        spaces = environment_spaces(spec.environment)
    else:
        name = spec.recorded_inputs[0].path or sources[0].name
        spaces, notes = _find_spaces(resource, sources[0].dataset, name)
    if not sources:
        return spaces, notes
    notes += [
        Problem((), text, path=source.name)
        for source in (sources if check_units else ())
        for text in find_wrong_units(source.dataset, spaces.action)
    ]
    data_spec = sources[0].dataset.spec
    named_spaces = Spaces(
        data_spec.with_element_names(spaces.observation, Columns.OBS),
        data_spec.with_element_names(spaces.action, Columns.ACTIONS),
    )
    return named_spaces, notes


def declared_spaces(resource: OfflineTraining) -> Spaces | None:
    """Return the spaces that the resource alone determines; None if only the data determine them, or their names."""
    spec = resource.spec
    if spec.missing_rules or any(source.schema_map for source in spec.recorded_inputs):
        return None
    if spec.environment is not None:
        return environment_spaces(spec.environment)
    observation, action = _space_from_spec(spec.observation_space), _space_from_spec(spec.action_space)
    return None if observation is None or action is None else Spaces(observation, action)


def has_float_actions(resource: OfflineTraining, data_spec: DataSpec) -> bool:
    """Return True if a training has float actions, which can be normalised, or if its action space is unknown."""
    spaces = declared_spaces(resource)
    action_space = (
        spaces.action if spaces else _space_from_spec(resource.spec.action_space) or data_spec.action_space
    )
    if action_space is None:
        return True
    leaves = flatten_space(action_space, Columns.ACTIONS).values()
    return any(map(is_float_box, leaves))


def _find_spaces(resource: OfflineTraining, dataset: Dataset, name: str) -> tuple[Spaces, list[Problem]]:
    """Return the spaces of a training without an environment, and a note on each space that was guessed."""
    recorded_spaces = (dataset.spec.observation_space, dataset.spec.action_space)
    space_specs = (resource.spec.observation_space, resource.spec.action_space)
    spaces = [
        recorded_space if space_spec is None else _space_from_spec(space_spec)
        for space_spec, recorded_space in zip(space_specs, recorded_spaces, strict=True)
    ]
    if None not in spaces:
        return Spaces(*spaces), []
    guesses = guess_spaces(dataset)
    notes = []
    for index, field in enumerate(("observationSpace", "actionSpace")):
        if spaces[index] is not None:
            continue
        if guesses[index] is None:
            raise SpecError(
                f"is required: there is no environment, and {name} does not describe the space. Add it, such as "
                "`observationSpace: {type: Box, low: -10, high: 10, shape: [4]}` or `actionSpace: {type: Discrete, n: "
                "2}`; `hindcast inspect` shows the data's shapes and ranges.",
                field=f"spec.{field}",
                resource=title(resource),
            )
        spaces[index] = guesses[index]
        text = f"was guessed from the data: {formatting.space(space_to_json(guesses[index]))}; set it if that is wrong"
        notes.append(Problem(("spec", field), text))
    return Spaces(*spaces), notes


def _space_from_spec(space: object) -> gym.Space | None:
    if space is None:
        return None
    return space_from_json(space.model_dump(mode="json", by_alias=True, exclude_none=True))  # type: ignore[attr-defined]
