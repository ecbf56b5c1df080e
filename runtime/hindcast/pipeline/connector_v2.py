"""`ConnectorV2`: the base of connectors over episodes, in RLlib's form, and pipelines of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np

from hindcast.episodes import nested
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.user_code import Misuse, calling

Items = dict[str, Any]


class BatchedNdArray(np.ndarray):
    """An array of several items of a batch: `[items, ...]`."""


class ConnectorV2:
    """Base of connectors over episodes, with RLlib's call.

    `__call__(*, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs)` changes the
    episodes, or adds columns to `batch`, which starts empty, by `add_batch_item` and `add_n_batch_items`; it returns
    the batch. What it is given:

    * `rl_module["default_policy"]`, the policy's network with the weights that the run began with, as a separate copy.
      (What follows from weights in training is an algorithm's `targets`.)
    * `episodes`, complete, in NumPy form; their number and lengths must stay.
    * `shared_data`, a dictionary for all pieces that see the same episodes; `shared_data["context"]` is the `Context`.
    * `metrics`, a `MetricsLogger`: what is logged is in results under `learner_connector`.

    Attributes:
        stochastic: as of `Connector`.
        columns: as of `Connector`: the columns of `batch` that shall reach the algorithm; where it is empty, all that
            it adds to the first episodes.
        input_observation_space: of the episodes.
        input_action_space: of the episodes.
    """

    stochastic: bool = False
    columns: Collection[str] = ()
    input_observation_space: gym.Space | None = None
    input_action_space: gym.Space | None = None

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        self.input_observation_space = input_observation_space
        self.input_action_space = input_action_space

    @property
    def observation_space(self) -> gym.Space | None:
        """The observations that it gives: those that it gets, unless it is `recompute_output_observation_space`d."""
        return self.recompute_output_observation_space(self.input_observation_space, self.input_action_space)

    @property
    def action_space(self) -> gym.Space | None:
        """The actions that it gives."""
        return self.recompute_output_action_space(self.input_observation_space, self.input_action_space)

    def recompute_output_observation_space(
        self,
        input_observation_space: gym.Space | None,
        input_action_space: gym.Space | None,  # noqa: ARG002
    ) -> gym.Space | None:
        """Hook: the space of the observations that it gives, for the pieces after it."""
        return input_observation_space

    def recompute_output_action_space(
        self,
        input_observation_space: gym.Space | None,  # noqa: ARG002
        input_action_space: gym.Space | None,
    ) -> gym.Space | None:
        """Hook: the space of the actions that it gives, for the pieces after it."""
        return input_action_space

    @staticmethod
    def single_agent_episode_iterator(
        episodes: Sequence[SingleAgentEpisode],
        agents_that_stepped_only: bool = True,  # noqa: ARG004
        zip_with_batch_column: Mapping[tuple[str], Sequence[Any]] | None = None,
    ) -> Iterator[Any]:
        """The episodes, one by one; with a column of the batch, pairs of an episode and an item, item by item."""
        if zip_with_batch_column is None:
            yield from episodes
            return
        for episode in episodes:
            for item in zip_with_batch_column[(episode.id_,)]:
                yield episode, item

    @staticmethod
    def add_batch_item(
        batch: Items,
        column: str,
        item_to_add: Any,
        single_agent_episode: SingleAgentEpisode | None = None,
    ) -> None:
        """Add the value of one step of an episode; call it for each of its steps, in order."""
        if single_agent_episode is None:
            batch.setdefault(column, []).append(item_to_add)
        else:
            batch.setdefault(column, {}).setdefault((single_agent_episode.id_,), []).append(item_to_add)

    @staticmethod
    def add_n_batch_items(
        batch: Items,
        column: str,
        items_to_add: Any,
        num_items: int,
        single_agent_episode: SingleAgentEpisode | None = None,
    ) -> None:
        """Add the values of `num_items` steps of an episode in a row: a list of them, or arrays `[num_items, ...]`."""
        if isinstance(items_to_add, list):
            if len(items_to_add) != num_items:
                raise ValueError(
                    f"column {column!r}: {len(items_to_add)} items were given, num_items is {num_items}"
                )
            for item in items_to_add:
                ConnectorV2.add_batch_item(batch, column, item, single_agent_episode)
            return
        marked = nested.map_leaves(lambda leaf: np.asarray(leaf).view(BatchedNdArray), items_to_add)
        ConnectorV2.add_batch_item(batch, column, marked, single_agent_episode)


class LearnerConnectorPipeline(ConnectorV2):
    """Pieces, called one after the other with the same episodes and batch, as RLlib's `ConnectorPipelineV2` is."""

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        connectors: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.connectors: list[Any] = []
        for connector in connectors or ():
            self.append(connector)

    def __call__(
        self,
        *,
        batch: Items,
        episodes: Sequence[SingleAgentEpisode],
        rl_module: Any = None,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **given: Any,
    ) -> Items:
        """Call all pieces; a mistake in one is reported by its name.

        Raises:
            UserCodeError: one raised, or returned something other than a batch.
        """
        shared_data = {} if shared_data is None else shared_data
        for piece in self.connectors:
            with calling(f"connector {type(piece).__name__}", type(piece).__call__):
                batch = piece(
                    rl_module=rl_module,
                    batch=batch,
                    episodes=episodes,
                    explore=explore,
                    shared_data=shared_data,
                    metrics=metrics,
                    **given,
                )
                if not isinstance(batch, dict):
                    raise Misuse(
                        f"returned a {type(batch).__name__}; it must return the batch, a dictionary."
                    )
        return batch

    def append(self, connector: Any) -> None:
        """Add a piece at the end."""
        self._insert(len(self.connectors), connector)

    def prepend(self, connector: Any) -> None:
        """Add a piece at the beginning."""
        self._insert(0, connector)

    def insert_before(self, name_or_class: str | type, connector: Any) -> Self:
        """Add a piece before another.

        Raises:
            ValueError: there is no such piece.
        """
        self._insert(self._index(name_or_class), connector)
        return self

    def insert_after(self, name_or_class: str | type, connector: Any) -> Self:
        """Add a piece after another.

        Raises:
            ValueError: there is no such piece.
        """
        self._insert(self._index(name_or_class) + 1, connector)
        return self

    def remove(self, name_or_class: str | type) -> None:
        """Take a piece out.

        Raises:
            ValueError: there is no such piece.
        """
        del self.connectors[self._index(name_or_class)]
        self._tell_spaces()

    def __len__(self) -> int:
        return len(self.connectors)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.connectors)

    def __getitem__(self, key: int | str | type) -> Any:
        return self.connectors[key if isinstance(key, int) else self._index(key)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(type(piece).__name__ for piece in self.connectors)})"

    def _insert(self, position: int, connector: Any) -> None:
        if not callable(connector):
            raise ValueError(f"{connector!r} is not a connector")
        self.connectors.insert(position, connector)
        self._tell_spaces()

    def _index(self, name_or_class: str | type) -> int:
        for index, piece in enumerate(self.connectors):
            if name_or_class in (type(piece), type(piece).__name__):
                return index
        name = name_or_class if isinstance(name_or_class, str) else name_or_class.__name__
        raise ValueError(f"the pipeline has no {name}; it is {self!r}")

    def _tell_spaces(self) -> None:
        """Each piece has the spaces that the one before it gives."""
        spaces = (self.input_observation_space, self.input_action_space)
        for piece in self.connectors:
            if isinstance(piece, ConnectorV2):
                piece.input_observation_space, piece.input_action_space = spaces
                if isinstance(piece, LearnerConnectorPipeline):
                    piece._tell_spaces()
                spaces = (piece.observation_space, piece.action_space)
