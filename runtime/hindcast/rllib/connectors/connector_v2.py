"""`ConnectorV2`, RLlib's base class of connectors over episodes, and pipelines of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np

from hindcast.episodes import nested
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.formatting import describe_type
from hindcast.user_code import Misuse, calling

Items = dict[str, Any]
"""A batch that connectors fill: column -> list of items, or `{(episode id,): list of items}`."""


class BatchedNdArray(np.ndarray):
    """An array `[items, ...]` that stands for several items of a batch, not for one."""


class ConnectorV2:
    """Base of connectors over episodes, with RLlib's call.

    `__call__(*, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs)` changes the
    episodes, or adds columns to `batch`, which starts empty, by `add_batch_item` and `add_n_batch_items`; it returns
    the batch. Its arguments:

    * `rl_module["default_policy"]`, the policy's network with the weights that the run began with, as a separate copy.
      (To compute columns with the current weights, use an algorithm's `targets`.)
    * `episodes`, complete, in NumPy form; their number and lengths must not change.
    * `shared_data`, a dictionary for all connectors of the same episodes; `shared_data["context"]` is the `Context`.
    * `metrics`, a `MetricsLogger`; results contain what is logged under `learner_connector`.

    Attributes:
        stochastic: see `Connector`.
        columns: names of the columns that the connector adds to `batch`, for the algorithm; if empty, a call with the
            first episodes shows them.
        input_observation_space: space of the episodes' observations.
        input_action_space: space of the episodes' actions.
    """

    unsupported_overrides: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("get_state", "set_state", "reset_state", "merge_states", "get_ctor_args_and_kwargs"),
        "connectors keep no state between calls; pass what a connector needs as arguments",
    )
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
        """The space of observations after this connector; see `recompute_output_observation_space`."""
        return self.recompute_output_observation_space(self.input_observation_space, self.input_action_space)

    @property
    def action_space(self) -> gym.Space | None:
        """The space of actions after this connector; see `recompute_output_action_space`."""
        return self.recompute_output_action_space(self.input_observation_space, self.input_action_space)

    def recompute_output_observation_space(
        self,
        input_observation_space: gym.Space | None,
        input_action_space: gym.Space | None,  # noqa: ARG002
    ) -> gym.Space | None:
        """Hook: return the space of observations after this connector; by default the space before it."""
        return input_observation_space

    def recompute_output_action_space(
        self,
        input_observation_space: gym.Space | None,  # noqa: ARG002
        input_action_space: gym.Space | None,
    ) -> gym.Space | None:
        """Hook: return the space of actions after this connector; by default the space before it."""
        return input_action_space

    @staticmethod
    def single_agent_episode_iterator(
        episodes: Sequence[SingleAgentEpisode],
        agents_that_stepped_only: bool = True,  # noqa: ARG004
        zip_with_batch_column: Mapping[tuple[str], Sequence[Any]] | None = None,
    ) -> Iterator[Any]:
        """Yield the episodes; with a column of the batch, yield pairs (episode, item of this episode)."""
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
        """Add the value of one step of an episode; to be called for each step of the episode, in order."""
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
        """Add the values of `num_items` adjacent steps: a list, or arrays `[num_items, ...]`.

        Raises:
            ValueError: the list has another length.
        """
        if isinstance(items_to_add, list):
            if len(items_to_add) != num_items:
                raise ValueError(
                    f"column {column!r}: {len(items_to_add)} items do not match num_items={num_items}"
                )
            for item in items_to_add:
                ConnectorV2.add_batch_item(batch, column, item, single_agent_episode)
            return
        # The type marks an array of several items: `stack_items` concatenates it instead of stacking it.
        arrays = nested.map_leaves(lambda leaf: np.asarray(leaf).view(BatchedNdArray), items_to_add)
        ConnectorV2.add_batch_item(batch, column, arrays, single_agent_episode)


class LearnerConnectorPipeline(ConnectorV2):
    """Connectors that run one after the other on the same episodes and batch, like RLlib's `ConnectorPipelineV2`.

    Args:
        input_observation_space: space of the episodes' observations.
        input_action_space: space of the episodes' actions.
        connectors: connectors, in order.
        kwargs: ignored, as in `ConnectorV2`.

    Attributes:
        default_classes: classes of which the pipeline must keep a connector, for a training.
    """

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
        self.default_classes: tuple[type, ...] = ()
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
        **kwargs: Any,
    ) -> Items:
        """Run all connectors; an error names the connector that raised it.

        Raises:
            UserCodeError: a connector raised, or did not return a batch.
        """
        shared_data = {} if shared_data is None else shared_data
        for connector in self.connectors:
            with calling(f"connector {type(connector).__name__}", type(connector).__call__):
                batch = connector(
                    rl_module=rl_module,
                    batch=batch,
                    episodes=episodes,
                    explore=explore,
                    shared_data=shared_data,
                    metrics=metrics,
                    **kwargs,
                )
                if not isinstance(batch, dict):
                    raise Misuse(f"returned {describe_type(batch)}; it must return the batch, a dictionary.")
        return batch

    def append(self, connector: Any) -> None:
        """Add a connector at the end."""
        self._insert(len(self.connectors), connector)

    def prepend(self, connector: Any) -> None:
        """Add a connector at the beginning."""
        self._insert(0, connector)

    def insert_before(self, name_or_class: str | type, connector: Any) -> Self:
        """Add a connector before the first connector of a class or with the name of a class; return the pipeline.

        Raises:
            ValueError: there is no such connector.
        """
        self._insert(self._index(name_or_class), connector)
        return self

    def insert_after(self, name_or_class: str | type, connector: Any) -> Self:
        """Add a connector after the first connector of a class or with the name of a class; return the pipeline.

        Raises:
            ValueError: there is no such connector.
        """
        self._insert(self._index(name_or_class) + 1, connector)
        return self

    def remove(self, name_or_class: str | type) -> None:
        """Remove the first connector of a class or with the name of a class.

        Raises:
            ValueError: there is no such connector.
        """
        del self.connectors[self._index(name_or_class)]
        self._propagate_spaces()

    def __len__(self) -> int:
        return len(self.connectors)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.connectors)

    def __getitem__(self, key: int | str | type) -> Any:
        return self.connectors[key if isinstance(key, int) else self._index(key)]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(type(connector).__name__ for connector in self.connectors)})"
        )

    def _insert(self, position: int, connector: Any) -> None:
        if not callable(connector):
            raise ValueError(f"{connector!r} is not a connector")
        self.connectors.insert(position, connector)
        self._propagate_spaces()

    def _index(self, name_or_class: str | type) -> int:
        for index, connector in enumerate(self.connectors):
            if name_or_class in (type(connector), type(connector).__name__):
                return index
        name = name_or_class if isinstance(name_or_class, str) else name_or_class.__name__
        raise ValueError(f"the pipeline has no {name}; it contains {self!r}")

    def _propagate_spaces(self) -> None:
        """Set the input spaces of each connector to the spaces after the previous connector."""
        spaces = (self.input_observation_space, self.input_action_space)
        for connector in self.connectors:
            if isinstance(connector, ConnectorV2):
                connector.input_observation_space, connector.input_action_space = spaces
                if isinstance(connector, LearnerConnectorPipeline):
                    connector._propagate_spaces()
                spaces = (connector.observation_space, connector.action_space)
