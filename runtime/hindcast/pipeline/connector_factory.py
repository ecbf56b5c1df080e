"""Make connectors over blocks and batches from `spec.pipeline.connectors`.

Adjacent connectors in RLlib's form (`ConnectorV2`), which are called with lists of `SingleAgentEpisode`, become one
`EpisodeConnector`: they share episodes, batch and `shared_data`. It converts a block to episodes and back, which is
slow, since each episode becomes Python objects; only connectors of this form need it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import gymnasium as gym
import torch

from hindcast.api.environment import NamedCall
from hindcast.api.sentences import nearest
from hindcast.episodes.block import Block
from hindcast.episodes.convert import block_to_episodes, episodes_to_block
from hindcast.errors import SpecError
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.connector_pieces import (
    LIBRARY_CONNECTORS,
    UNNEEDED_CONNECTORS,
    AddColumnsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    default_connectors,
    is_default,
)
from hindcast.pipeline.connector_v2 import ConnectorV2, LearnerConnectorPipeline
from hindcast.pipeline.connectors import AddColumns, BatchConnector, BlockConnector, Context
from hindcast.pipeline.contracts import check_episodes, check_repeatable
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.pipeline.module_batches import with_batch
from hindcast.pipeline.multi_rl_module import MultiRLModule, frozen_copy
from hindcast.user_code import Misuse, calling, import_object, raise_user_code_error

_FIELD: Final = "spec.pipeline.connectors"
_SPACES: Final = ("input_observation_space", "input_action_space")


@dataclass(frozen=True)
class ConnectorContext:
    """The properties of a training that connectors are constructed with.

    Attributes:
        observation_space: the environment's, or the data's.
        action_space: the environment's, or the data's.
        module: the policy's network; connectors in RLlib's form get a copy.
        needs_next_obs: whether the algorithm reads `new_obs`.
    """

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    module: RLModule | None = None
    needs_next_obs: bool = False


def make_connectors(
    entries: Iterable[NamedCall], objects: Sequence[Any], context: ConnectorContext
) -> list[BlockConnector | BatchConnector]:
    """Return the connectors of a resource, in order.

    Args:
        entries: library names or "package.module:Name" of a class or a function, with keyword arguments.
        objects: further connectors, of any form.
        context: properties of the training.

    Raises:
        SpecError: an unknown name, or an object that is not a connector.
        UserCodeError: importing or constructing one raised.
    """
    connectors = [
        connector for entry in entries for connector in _expand(_construct(entry, context), entry.name)
    ]
    connectors += [connector for entry in objects for connector in _expand(entry, type(entry).__name__)]
    grouped_connectors: list[BlockConnector | BatchConnector] = []
    # Grouped, so that a block is converted to episodes once for adjacent connectors.
    for takes_episodes, group in groupby(connectors, key=is_episode_connector):
        group_connectors = list(group)
        grouped_connectors += (
            [EpisodeConnector(group_connectors, context)] if takes_episodes else group_connectors
        )
    return grouped_connectors


def make_learner_pipeline(
    entries: Iterable[NamedCall], observation_space: gym.Space | None, action_space: gym.Space | None
) -> LearnerConnectorPipeline:
    """Return a resource's connectors as RLlib's pipeline for learners, followed by RLlib's default connectors.

    Raises:
        SpecError: an unknown name, or a connector that is not in RLlib's form.
        UserCodeError: importing or constructing one raised.
    """
    context = ConnectorContext(observation_space, action_space)
    connectors = [connector for entry in entries for connector in _flatten(_construct(entry, context))]
    for connector in connectors:
        if not is_episode_connector(connector):
            raise SpecError(
                f"{_FIELD}: {type(connector).__name__} cannot be in a LearnerConnectorPipeline, which only "
                "takes connectors in RLlib's form (ConnectorV2)."
            )
    return LearnerConnectorPipeline(
        observation_space, action_space, connectors=[*connectors, *default_connectors()]
    )


def _flatten(entry: Any) -> list[Any]:
    if isinstance(entry, list | tuple):
        return [connector for element in entry for connector in _flatten(element)]
    return list(entry) if type(entry) is LearnerConnectorPipeline else [entry]


def is_episode_connector(candidate: Any) -> bool:
    """Return True if an object is called with episodes."""
    if isinstance(candidate, BlockConnector | BatchConnector | type) or not callable(candidate):
        return False
    return isinstance(candidate, ConnectorV2) or "episodes" in _parameters_of(candidate)


def _expand(entry: Any, name: str) -> Iterator[Any]:
    """Yield the connectors of an entry of `spec.pipeline.connectors`.

    The default connectors at the end of a pipeline are left out: a training does the same without them.
    """
    if isinstance(entry, list | tuple):
        for element in entry:
            yield from _expand(element, name)
    elif type(entry) is LearnerConnectorPipeline:
        connectors = list(entry)
        requested_columns = [
            AddColumns(connector.added_columns)
            for connector in connectors
            if type(connector) is AddNextObservationsFromEpisodesToTrainBatch
        ]
        # Custom connectors may rely on default ones before them, so only default ones at the end are dropped.
        while connectors and (
            is_default(connectors[-1]) or type(connectors[-1]) in LIBRARY_CONNECTORS.values()
        ):
            connectors.pop()
        for connector in connectors:
            yield _check_connector(connector, name)
        yield from requested_columns
    elif type(entry) in LIBRARY_CONNECTORS.values():
        yield AddColumns(
            entry.added_columns, all_recorded=isinstance(entry, AddColumnsFromEpisodesToTrainBatch)
        )
    elif type(entry).__name__ in UNNEEDED_CONNECTORS and isinstance(entry, ConnectorV2) and is_default(entry):
        raise SpecError(_unneeded_message(type(entry).__name__))
    else:
        yield _check_connector(entry, name)


def _is_connector(candidate: Any) -> bool:
    return isinstance(candidate, BlockConnector | BatchConnector) or is_episode_connector(candidate)


def _check_connector(candidate: Any, name: str) -> Any:
    if _is_connector(candidate):
        return candidate
    raise SpecError(
        f"{_FIELD}: {name!r} is not a connector; derive it from BlockConnector, BatchConnector or ConnectorV2, "
        "or pass a function (observation_space, action_space) that returns such connectors."
    )


def _construct(entry: NamedCall, context: ConnectorContext) -> Any:
    factory = _find_factory(entry.name)
    if _is_connector(factory):  # registered from Python as an object
        return copy.deepcopy(factory)
    if not callable(factory):
        return factory
    with calling(f"{_FIELD}: creating {entry.name!r}", factory):
        return _call_factory(factory, entry.kwargs, context)


def _call_factory(factory: Callable[..., Any], kwargs: dict[str, Any], context: ConnectorContext) -> Any:
    """Call a class or a function of the user's with its keyword arguments and the spaces.

    A class gets the spaces under RLlib's names, as far as it has such parameters; a function gets them as its first two
    arguments, if it accepts them.
    """
    spaces: tuple[gym.Space | None, ...] = (context.observation_space, context.action_space)
    if isinstance(factory, type):
        parameters = _parameters_of(factory)
        space_kwargs = {
            name: space for name, space in zip(_SPACES, spaces, strict=True) if name in parameters
        }
        return factory(**{**space_kwargs, **kwargs})
    try:
        inspect.signature(factory).bind_partial(*spaces, **kwargs)
    except (TypeError, ValueError):  # it does not accept the spaces, or is written in C
        spaces = ()
    return factory(*spaces, **kwargs)


def _parameters_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except ValueError:  # the class is written in C
        return {}


def _find_factory(name: str) -> Any:
    if ":" in name:
        return import_object(name, _FIELD)
    if name in LIBRARY_CONNECTORS:
        return LIBRARY_CONNECTORS[name]
    if name in UNNEEDED_CONNECTORS:
        raise SpecError(_unneeded_message(name))
    raise SpecError(
        f"{_FIELD}: {name!r} is neither a library connector nor a "
        f'"package.module:Class"{nearest(name, LIBRARY_CONNECTORS)}'
    )


def _unneeded_message(name: str) -> str:
    return f"{_FIELD}: {name} is not needed here. Leave it out: {UNNEEDED_CONNECTORS[name]}."


class EpisodeConnector(BlockConnector):
    """A connector over blocks that runs connectors over episodes.

    Args:
        connectors: objects that are called like a `ConnectorV2`.
        context: if its `needs_next_obs` is set, a connector that changes observations in the batch must also set
            `new_obs`.
    """

    def __init__(self, connectors: Sequence[Any], context: ConnectorContext) -> None:
        self.connectors = connectors
        self._spaces = (context.observation_space, context.action_space)
        self._pipeline = LearnerConnectorPipeline(*self._spaces, connectors=connectors)
        self._module = None if context.module is None else MultiRLModule(frozen_copy(context.module))
        self._needs_next_obs = context.needs_next_obs
        self._is_checked = False
        self.stochastic = any(bool(getattr(connector, "stochastic", False)) for connector in connectors)
        self.columns = tuple(name for connector in connectors for name in getattr(connector, "columns", ()))

    @property
    def name(self) -> str:
        """Names of the classes of the connectors over episodes."""
        return ", ".join(type(connector).__name__ for connector in self.connectors)

    @property
    def function(self) -> Callable[..., Any]:
        """The `__call__` of the first connector over episodes."""
        return type(self.connectors[0]).__call__

    def __call__(self, block: Block, context: Context) -> Block:
        if len(self.connectors) > 1 and not self._is_checked:
            self._is_checked = True
            self._check_each(block, context)
        return self._run(self._pipeline, block, context)

    def _run(self, pipeline: LearnerConnectorPipeline, block: Block, context: Context) -> Block:
        episodes = block_to_episodes(block, *self._spaces)
        # The network is a frozen copy, so its outputs need no gradients.
        with torch.no_grad():
            batch = pipeline(
                batch={},
                episodes=episodes,
                rl_module=self._module,
                explore=False,
                shared_data={"context": context},
                metrics=context.metrics,
            )
        return with_batch(episodes_to_block(episodes), batch, needs_next_obs=self._needs_next_obs)

    def _check_each(self, block: Block, context: Context) -> None:
        """Raise the error of the first connector that breaks a rule; other checks see all of them as one connector."""
        for num_connectors, connector in enumerate(self.connectors, 1):
            pipeline = LearnerConnectorPipeline(*self._spaces, connectors=self.connectors[:num_connectors])
            try:
                first_block, second_block = (
                    self._run(pipeline, block, replace(context, metrics=MetricsLogger())) for _ in range(2)
                )
                check_episodes(second_block, block.length)
                check_repeatable(first_block.columns, second_block.columns)
            except (Misuse, ValueError) as error:
                raise_user_code_error(
                    error, f"connector {type(connector).__name__}", type(connector).__call__
                )
