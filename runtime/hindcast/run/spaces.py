"""The spaces that a training works with, and where they come from."""

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
    """The spaces of an environment, which is made for that."""
    made = make_environment(environment)
    made.close()
    return Spaces(made.observation_space, made.action_space)


def spaces_of(resource: OfflineTraining, sources: Sequence[Source]) -> Spaces:
    """The environment's spaces, else those given in the resource, else those recorded with the data.

    Raises:
        SpecError: there are none.
    """
    spec = resource.spec
    if spec.environment is not None:
        return environment_spaces(spec.environment)
    return _known(resource, sources[0].dataset.spec, spec.recorded[0].path or sources[0].name)


def declared_spaces(resource: OfflineTraining) -> Spaces | None:
    """The spaces that a training works with whatever its data say; None if it takes the data to know them."""
    spec = resource.spec
    if spec.environment is not None:
        return environment_spaces(spec.environment)
    observation, action = _given(spec.observation_space), _given(spec.action_space)
    return None if observation is None or action is None else Spaces(observation, action)


def check_spaces(resource: OfflineTraining, recorded: DataSpec, name: str) -> None:
    """Make sure that `spaces_of` will find spaces, before the data are prepared.

    Args:
        recorded: what the data of its first input say of themselves.
        name: of these data, for messages.

    Raises:
        SpecError: it will not.
    """
    if resource.spec.environment is None:
        _known(resource, recorded, name)


def has_float_actions(resource: OfflineTraining, recorded: DataSpec) -> bool:
    """Whether a training's actions can be normalised at all, or it is not known which ones it takes."""
    stated = declared_spaces(resource)
    space = stated.action if stated else _given(resource.spec.action_space) or recorded.action_space
    if space is None:
        return True
    leaves = flatten_space(space, Columns.ACTIONS).values()
    return any(isinstance(leaf, gym.spaces.Box) and leaf.dtype.kind == "f" for leaf in leaves)


def _known(resource: OfflineTraining, recorded: DataSpec, name: str) -> Spaces:
    """The spaces of a training without an environment."""
    observation = _given(resource.spec.observation_space) or recorded.observation_space
    action = _given(resource.spec.action_space) or recorded.action_space
    if observation is None or action is None:
        missing = "observationSpace" if observation is None else "actionSpace"
        raise SpecError(
            f"{title(resource)}: spec.{missing} is needed: there is no environment, and the data in {name} "
            "do not state their spaces. Add it, such as `observationSpace: {type: Box, low: -10, high: 10, "
            "shape: [4]}` or `actionSpace: {type: Discrete, n: 2}`; `hindcast inspect` shows the data's shapes "
            "and ranges."
        )
    return Spaces(observation, action)


def _given(space: object) -> gym.Space | None:
    if space is None:
        return None
    return space_from_json(space.model_dump(mode="json", by_alias=True, exclude_none=True))  # type: ignore[attr-defined]
