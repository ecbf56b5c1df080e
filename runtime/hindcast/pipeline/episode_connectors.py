"""Connectors written over lists of `SingleAgentEpisode`, in RLlib's form, on blocks.

A block becomes episodes and back, with Python objects for each, so this is the slow way: it is taken only for
connectors of this form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import per_observation
from hindcast.episodes.convert import block_to_episodes, episodes_to_block
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.pipeline.connectors import BlockConnector, Context

Items = dict[str, Any]


class ConnectorV2:
    """Base of connectors over episodes, with RLlib's call.

    `__call__(*, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs)` changes the episodes,
    or adds columns to `batch`, which starts empty, by `add_batch_item` and `add_n_batch_items`; it returns
    the batch. A data worker has no module: `rl_module` is None. `shared_data["context"]` is the `Context`.

    Attributes:
        stochastic: as of `Connector`.
        columns: as of `Connector`: the columns of `batch` that shall reach the algorithm.
        input_observation_space: of the episodes.
        input_action_space: of the episodes.
    """

    stochastic: bool = False
    columns: Collection[str] = ()

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        self.input_observation_space = input_observation_space
        self.input_action_space = input_action_space

    @staticmethod
    def single_agent_episode_iterator(
        episodes: Sequence[SingleAgentEpisode],
        agents_that_stepped_only: bool = True,  # noqa: ARG004
    ) -> Iterator[SingleAgentEpisode]:
        """The episodes, one by one."""
        return iter(episodes)

    @staticmethod
    def add_batch_item(
        batch: Items, column: str, item_to_add: Any, single_agent_episode: SingleAgentEpisode
    ) -> None:
        """Add the value of one step of an episode; call it for each of its steps, in order."""
        batch.setdefault(column, {}).setdefault((single_agent_episode.id_,), []).append([item_to_add])

    @staticmethod
    def add_n_batch_items(
        batch: Items, column: str, items_to_add: Any, num_items: int, single_agent_episode: SingleAgentEpisode
    ) -> None:
        """Add the values of `num_items` consecutive steps of an episode, a list or an array of them."""
        if len(items_to_add) != num_items:
            raise ValueError(
                f"column {column!r}: {len(items_to_add)} items were given, num_items is {num_items}"
            )
        batch.setdefault(column, {}).setdefault((single_agent_episode.id_,), []).append(items_to_add)


class EpisodeConnector(BlockConnector):
    """Runs a connector over episodes on blocks.

    Args:
        connector: any object with the call of `ConnectorV2`.
        observation_space: how observations are nested.
        action_space: how actions are nested.
    """

    def __init__(
        self,
        connector: Any,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
    ) -> None:
        self.connector = connector
        self._spaces = (observation_space, action_space)
        self.stochastic = bool(getattr(connector, "stochastic", False))
        self.columns = tuple(getattr(connector, "columns", ()))

    @property
    def name(self) -> str:
        """The class of the connector over episodes."""
        return type(self.connector).__name__

    @property
    def function(self) -> Callable[..., Any]:
        """Of the connector over episodes."""
        return type(self.connector).__call__

    def __call__(self, block: Block, context: Context) -> Block:
        episodes = block_to_episodes(block, *self._spaces)
        batch = self.connector(
            rl_module=None,
            batch={},
            episodes=episodes,
            explore=False,
            shared_data={"context": context},
            metrics=None,
        )
        changed = episodes_to_block(episodes)
        return changed.with_columns({**changed.columns, **_columns(batch or {}, changed)})


def is_episode_connector(candidate: Any) -> bool:
    """Whether an object is called with episodes."""
    return callable(candidate) and "episodes" in inspect.signature(candidate).parameters


def _columns(batch: Items, block: Block) -> dict[str, NDArray[Any]]:
    return {name: _column(name, items, block) for name, items in batch.items()}


def _column(name: str, items: Any, block: Block) -> NDArray[Any]:
    if per_observation(name):
        raise ValueError(f"change {name!r} in the episodes: the batch has no place for final observations")
    if not isinstance(items, dict):
        raise ValueError(
            f"column {name!r} of the batch must say which episode its items are of (single_agent_episode)"
        )
    chunks = [chunk for eps_id in block.eps_id for chunk in items.get((eps_id,), ())]
    column = np.concatenate(chunks) if chunks else np.empty(0)
    if len(column) != block.num_steps:
        raise ValueError(f"column {name!r} of the batch has {len(column)} items, expected {block.num_steps}")
    return column
