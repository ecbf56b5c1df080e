"""Observation and action space of a training, from its environment, its resource or its data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import gymnasium as gym

from hindcast.api import EnvironmentSpec, OfflineTraining
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space, space_from_json
from hindcast.errors import SpecError
from hindcast.formats.spec import DataSpec
from hindcast.pipeline.offline_data import Source
from hindcast.record.environments import make_environment
from hindcast.run.claim import title


class Spaces(NamedTuple):
    """Observation and action space of an environment."""

    observation: gym.Space
    action: gym.Space


def environment_spaces(environment: EnvironmentSpec) -> Spaces:
    """Create an environment and return its spaces."""
    env = make_environment(environment)
    env.close()
    return Spaces(env.observation_space, env.action_space)


def spaces_of(resource: OfflineTraining, sources: Sequence[Source]) -> Spaces:
    """Return the environment's spaces, or those in the resource, or those recorded with the data.

    Raises:
        SpecError: no spaces are known.
    """
    spec = resource.spec
    if spec.environment is not None:
        return environment_spaces(spec.environment)
    return _require_spaces(resource, sources[0].dataset.spec, spec.recorded_inputs[0].path or sources[0].name)


def declared_spaces(resource: OfflineTraining) -> Spaces | None:
    """Return the spaces that the resource alone determines; None if the data are needed."""
    spec = resource.spec
    if spec.environment is not None:
        return environment_spaces(spec.environment)
    observation, action = _space_from_spec(spec.observation_space), _space_from_spec(spec.action_space)
    return None if observation is None or action is None else Spaces(observation, action)


def check_spaces(resource: OfflineTraining, recorded: DataSpec, name: str) -> None:
    """Check that `spaces_of` will find spaces, before the data are prepared.

    Args:
        recorded: spec of the first input's data.
        name: name of these data in messages.

    Raises:
        SpecError: it will not.
    """
    if resource.spec.environment is None:
        _require_spaces(resource, recorded, name)


def has_float_actions(resource: OfflineTraining, recorded: DataSpec) -> bool:
    """Return True if a training has float actions, which can be normalised, or if its actions are unknown."""
    spaces = declared_spaces(resource)
    space = spaces.action if spaces else _space_from_spec(resource.spec.action_space) or recorded.action_space
    if space is None:
        return True
    leaves = flatten_space(space, Columns.ACTIONS).values()
    return any(isinstance(leaf, gym.spaces.Box) and leaf.dtype.kind == "f" for leaf in leaves)


def _require_spaces(resource: OfflineTraining, recorded: DataSpec, name: str) -> Spaces:
    """Return the spaces of a training without an environment; raise a SpecError if one is unknown."""
    observation = _space_from_spec(resource.spec.observation_space) or recorded.observation_space
    action = _space_from_spec(resource.spec.action_space) or recorded.action_space
    if observation is None or action is None:
        missing = "observationSpace" if observation is None else "actionSpace"
        raise SpecError(
            f"{title(resource)}: spec.{missing} is required: there is no environment, and {name} does not say what "
            "its observation and action spaces are. Add it, such as `observationSpace: {type: Box, low: -10, high: 10, "
            "shape: [4]}` or `actionSpace: {type: Discrete, n: 2}`; `hindcast inspect` shows the data's shapes "
            "and ranges."
        )
    return Spaces(observation, action)


def _space_from_spec(space: object) -> gym.Space | None:
    if space is None:
        return None
    return space_from_json(space.model_dump(mode="json", by_alias=True, exclude_none=True))  # type: ignore[attr-defined]
