"""From `spec.pipeline.connectors` to connectors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import gymnasium as gym

from hindcast.api.environment import Named
from hindcast.errors import SpecError
from hindcast.pipeline.connectors import BY_NAME, WITHOUT_NEED, BatchConnector, BlockConnector
from hindcast.pipeline.episode_connectors import ConnectorV2, EpisodeConnector, is_episode_connector
from hindcast.user_code import calling, import_object

_FIELD = "spec.pipeline.connectors"


def make_connectors(
    named: Iterable[Named],
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
) -> list[BlockConnector | BatchConnector]:
    """The connectors of a resource, in order.

    Args:
        named: library names or "package.module:Class", with keyword arguments.
        observation_space: told to connectors over episodes.
        action_space: told to connectors over episodes.

    Raises:
        SpecError: a name that is none, or a class that is no connector.
        UserCodeError: importing or constructing one raised.
    """
    made = [(each.name, _make(each)) for each in named]
    return [as_connector(connector, name, observation_space, action_space) for name, connector in made]


def as_connector(
    connector: Any,
    name: str,
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
) -> BlockConnector | BatchConnector:
    """A connector in one of the three forms as one over blocks or batches; `name` stands in the message.

    Raises:
        SpecError: it is none.
    """
    if isinstance(connector, BlockConnector | BatchConnector):
        return connector
    if not is_episode_connector(connector):
        raise SpecError(
            f"{_FIELD}: {name!r} is no connector; "
            "derive it from BlockConnector, BatchConnector or ConnectorV2."
        )
    if isinstance(connector, ConnectorV2) and connector.input_observation_space is None:
        connector.input_observation_space = observation_space
        connector.input_action_space = action_space
    return EpisodeConnector(connector, observation_space, action_space)


def _make(named: Named) -> Any:
    factory = _factory(named.name)
    with calling(f"{_FIELD}: making {named.name!r}"):
        return factory(**named.kwargs)


def _factory(name: str) -> Any:
    if ":" in name:
        return import_object(name, _FIELD)
    if name in BY_NAME:
        return BY_NAME[name]
    if name in WITHOUT_NEED:
        raise SpecError(f"{_FIELD}: {name} has no place here, leave it out: {WITHOUT_NEED[name]}.")
    near = difflib.get_close_matches(name, BY_NAME, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(BY_NAME)}."
    raise SpecError(f'{_FIELD}: {name!r} is no library connector and no "package.module:Class"; {hint}')
