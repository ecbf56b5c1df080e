"""From `spec.pipeline.connectors` to connectors over blocks and batches.

Connectors over lists of `SingleAgentEpisode`, in RLlib's form (`ConnectorV2`), work on blocks too, as one
`EpisodeConnector`: a block becomes episodes and back, with Python objects for each, which is slow and done for
connectors of this form only. Those that follow each other share episodes, batch and `shared_data`.
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
    """What connectors are given of a training.

    Attributes:
        observation_space: the environment's, or the data's.
        action_space: the same.
        module: the policy's network; pieces in RLlib's form get a copy.
        next_obs: the algorithm reads `new_obs`.
    """

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    module: RLModule | None = None
    next_obs: bool = False


def make_connectors(
    named: Iterable[NamedCall], ready: Sequence[Any], given: ConnectorContext
) -> list[BlockConnector | BatchConnector]:
    """The connectors of a resource, in order.

    Args:
        named: library names or "package.module:Name" of a class or a function, with keyword arguments.
        ready: further connectors, of any form.

    Raises:
        SpecError: an unknown name, or an object that is not a connector.
        UserCodeError: importing or constructing one raised.
    """
    pieces = [piece for each in named for piece in _pieces(_make(each, given), each.name)]
    pieces += [piece for each in ready for piece in _pieces(each, type(each).__name__)]
    connectors: list[BlockConnector | BatchConnector] = []
    for over_episodes, group in groupby(pieces, key=is_episode_connector):
        several = list(group)
        connectors += [EpisodeConnector(several, given)] if over_episodes else several
    return connectors


def make_learner_pipeline(
    named: Iterable[NamedCall], observation_space: gym.Space | None, action_space: gym.Space | None
) -> LearnerConnectorPipeline:
    """The pieces of a resource, as RLlib's pipeline for learners has them: its default pieces come last.

    Raises:
        SpecError: a name that is none, or what has no place in such a pipeline.
        UserCodeError: importing or constructing one raised.
    """
    given = ConnectorContext(observation_space, action_space)
    pieces = [piece for each in named for piece in _flat(_make(each, given))]
    for piece in pieces:
        if not is_episode_connector(piece):
            raise SpecError(
                f"{_FIELD}: {type(piece).__name__} cannot be in a LearnerConnectorPipeline, whose pieces are in "
                "RLlib's form (ConnectorV2)."
            )
    return LearnerConnectorPipeline(
        observation_space, action_space, connectors=[*pieces, *default_connectors()]
    )


def _flat(made: Any) -> list[Any]:
    if isinstance(made, list | tuple):
        return [piece for each in made for piece in _flat(each)]
    return list(made) if type(made) is LearnerConnectorPipeline else [made]


def is_episode_connector(candidate: Any) -> bool:
    """Whether an object is called with episodes."""
    if isinstance(candidate, BlockConnector | BatchConnector | type) or not callable(candidate):
        return False
    return isinstance(candidate, ConnectorV2) or "episodes" in _parameters(candidate)


def _pieces(made: Any, name: str) -> Iterator[Any]:
    """The connectors of an entry, over blocks and batches, and pieces over episodes.

    A pipeline's default pieces after the user's last one are left out: a training does what they do.
    """
    if isinstance(made, list | tuple):
        for each in made:
            yield from _pieces(each, name)
    elif type(made) is LearnerConnectorPipeline:
        own = list(made)
        asked = [
            AddColumns(piece.added_columns)
            for piece in own
            if type(piece) is AddNextObservationsFromEpisodesToTrainBatch
        ]
        while own and (is_default(own[-1]) or type(own[-1]) in LIBRARY_CONNECTORS.values()):
            own.pop()
        for piece in own:
            yield _accepted(piece, name)
        yield from asked
    elif type(made) in LIBRARY_CONNECTORS.values():
        yield AddColumns(made.added, all_recorded=isinstance(made, AddColumnsFromEpisodesToTrainBatch))
    elif type(made).__name__ in UNNEEDED_CONNECTORS and isinstance(made, ConnectorV2) and is_default(made):
        raise SpecError(_without_need(type(made).__name__))
    else:
        yield _accepted(made, name)


def _is_connector(candidate: Any) -> bool:
    return isinstance(candidate, BlockConnector | BatchConnector) or is_episode_connector(candidate)


def _accepted(candidate: Any, name: str) -> Any:
    if _is_connector(candidate):
        return candidate
    raise SpecError(
        f"{_FIELD}: {name!r} is not a connector; derive it from BlockConnector, BatchConnector or ConnectorV2, "
        "or let a function (observation_space, action_space) return such ones."
    )


def _make(named: NamedCall, given: ConnectorContext) -> Any:
    factory = _factory(named.name)
    if _is_connector(factory):  # an object, given in Python
        return copy.deepcopy(factory)
    if not callable(factory):
        return factory
    with calling(f"{_FIELD}: making {named.name!r}", factory):
        return _called(factory, named.kwargs, given)


def _called(factory: Callable[..., Any], kwargs: dict[str, Any], given: ConnectorContext) -> Any:
    """A class, with the spaces where it takes them by RLlib's names; or a function of the two spaces."""
    spaces: tuple[gym.Space | None, ...] = (given.observation_space, given.action_space)
    if isinstance(factory, type):
        taken = _parameters(factory)
        named = {name: space for name, space in zip(_SPACES, spaces, strict=True) if name in taken}
        return factory(**{**named, **kwargs})
    try:
        inspect.signature(factory).bind_partial(*spaces, **kwargs)
    except (TypeError, ValueError):  # it does not take two more, or is not written in Python
        spaces = ()
    return factory(*spaces, **kwargs)


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except ValueError:  # of a class that is not written in Python
        return {}


def _factory(name: str) -> Any:
    if ":" in name:
        return import_object(name, _FIELD)
    if name in LIBRARY_CONNECTORS:
        return LIBRARY_CONNECTORS[name]
    if name in UNNEEDED_CONNECTORS:
        raise SpecError(_without_need(name))
    raise SpecError(
        f"{_FIELD}: {name!r} is neither a library connector nor a "
        f'"package.module:Class"{nearest(name, LIBRARY_CONNECTORS)}'
    )


def _without_need(name: str) -> str:
    return f"{_FIELD}: {name} has no place here, leave it out: {UNNEEDED_CONNECTORS[name]}."


class EpisodeConnector(BlockConnector):
    """Runs connectors over episodes on blocks.

    Args:
        pieces: any objects with the call of `ConnectorV2`.
        given: if the algorithm reads `new_obs`, whoever changes observations in the batch must give these too.
    """

    def __init__(self, pieces: Sequence[Any], given: ConnectorContext) -> None:
        self.pieces = pieces
        self._spaces = (given.observation_space, given.action_space)
        self._pipeline = LearnerConnectorPipeline(*self._spaces, connectors=pieces)
        self._module = None if given.module is None else MultiRLModule(frozen_copy(given.module))
        self._next_obs = given.next_obs
        self._tried = False
        self.stochastic = any(bool(getattr(piece, "stochastic", False)) for piece in pieces)
        self.columns = tuple(name for piece in pieces for name in getattr(piece, "columns", ()))

    @property
    def name(self) -> str:
        """The classes of the connectors over episodes."""
        return ", ".join(type(piece).__name__ for piece in self.pieces)

    @property
    def function(self) -> Callable[..., Any]:
        """Of the first connector over episodes."""
        return type(self.pieces[0]).__call__

    def __call__(self, block: Block, context: Context) -> Block:
        if len(self.pieces) > 1 and not self._tried:
            self._tried = True
            self._try_each(block, context)
        return self._connected(self._pipeline, block, context)

    def _connected(self, pipeline: LearnerConnectorPipeline, block: Block, context: Context) -> Block:
        episodes = block_to_episodes(block, *self._spaces)
        with torch.no_grad():
            batch = pipeline(
                batch={},
                episodes=episodes,
                rl_module=self._module,
                explore=False,
                shared_data={"context": context},
                metrics=context.metrics,
            )
        return with_batch(episodes_to_block(episodes), batch, next_obs=self._next_obs)

    def _try_each(self, block: Block, context: Context) -> None:
        """Find the first piece that changes what it must not, so that it is reported by its own name."""
        for count, piece in enumerate(self.pieces, 1):
            until = LearnerConnectorPipeline(*self._spaces, connectors=self.pieces[:count])
            try:
                once, again = (
                    self._connected(until, block, replace(context, metrics=MetricsLogger())) for _ in range(2)
                )
                check_episodes(again, block.length)
                check_repeatable(once.columns, again.columns)
            except (Misuse, ValueError) as error:
                raise_user_code_error(error, f"connector {type(piece).__name__}", type(piece).__call__)
