"""Observation and action space of a training, from its environment, its resource or its data."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym

from hindcast.api import OfflineTraining
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space, space_from_json
from hindcast.errors import SpecError
from hindcast.formats.spec import DataSpec
from hindcast.pipeline.offline_data import Source
from hindcast.record.environments import Spaces, environment_spaces
from hindcast.run.claim import title


def determine_spaces(resource: OfflineTraining, sources: Sequence[Source]) -> Spaces:
    """Return the spaces of the environment or, without an environment, of the resource or of the data.

    Raises:
        SpecError: no spaces are known.
    """
    spec = resource.spec
    if spec.environment is not None:
        return environment_spaces(spec.environment)
    return _require_spaces(resource, sources[0].dataset.spec, spec.recorded_inputs[0].path or sources[0].name)


def declared_spaces(resource: OfflineTraining) -> Spaces | None:
    """Return the spaces that the resource alone determines; None if only the data determine them."""
    spec = resource.spec
    if spec.environment is not None:
        return environment_spaces(spec.environment)
    observation, action = _space_from_spec(spec.observation_space), _space_from_spec(spec.action_space)
    return None if observation is None or action is None else Spaces(observation, action)


def check_spaces_are_known(resource: OfflineTraining, data_spec: DataSpec, name: str) -> None:
    """Check that `determine_spaces` will find spaces, before the data are prepared.

    Args:
        data_spec: spec of the first input's data.
        name: name of these data in messages.

    Raises:
        SpecError: the spaces are unknown.
    """
    if resource.spec.environment is None:
        _require_spaces(resource, data_spec, name)


def has_float_actions(resource: OfflineTraining, data_spec: DataSpec) -> bool:
    """Return True if a training has float actions, which can be normalised, or if its action space is unknown."""
    spaces = declared_spaces(resource)
    action_space = (
        spaces.action if spaces else _space_from_spec(resource.spec.action_space) or data_spec.action_space
    )
    if action_space is None:
        return True
    leaves = flatten_space(action_space, Columns.ACTIONS).values()
    return any(isinstance(leaf, gym.spaces.Box) and leaf.dtype.kind == "f" for leaf in leaves)


def _require_spaces(resource: OfflineTraining, data_spec: DataSpec, name: str) -> Spaces:
    """Return the spaces of a training without an environment; raise a SpecError if one is unknown."""
    observation = _space_from_spec(resource.spec.observation_space) or data_spec.observation_space
    action = _space_from_spec(resource.spec.action_space) or data_spec.action_space
    if observation is None or action is None:
        missing_field = "observationSpace" if observation is None else "actionSpace"
        raise SpecError(
            f"is required: there is no environment, and {name} does not say "
            "what its observation and action spaces are. Add it, such as `observationSpace: {type: Box, low: -10, "
            "high: 10, shape: [4]}` or `actionSpace: {type: Discrete, n: 2}`; `hindcast inspect` shows the data's "
            "shapes and ranges.",
            field=f"spec.{missing_field}",
            resource=title(resource),
        )
    return Spaces(observation, action)


def _space_from_spec(space: object) -> gym.Space | None:
    if space is None:
        return None
    return space_from_json(space.model_dump(mode="json", by_alias=True, exclude_none=True))  # type: ignore[attr-defined]
