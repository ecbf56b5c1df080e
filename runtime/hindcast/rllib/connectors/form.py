"""Connectors in RLlib's form in a training's pipeline: they are called with lists of `SingleAgentEpisode`.

Adjacent connectors of this form become one `EpisodeConnector`: they share episodes, batch and `shared_data`. An
`EpisodeConnector` converts a block to episodes and back, which is slow, since each episode becomes Python objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import gymnasium as gym
import torch

from hindcast.api.connectors import connector_problem
from hindcast.api.environment import NamedCall
from hindcast.episodes.block import Block
from hindcast.episodes.convert import block_to_episodes, episodes_to_block
from hindcast.errors import SpecError
from hindcast.metrics_logger import MetricsLogger
from hindcast.pipeline.connector_factory import FIELD, construct_connector, parameters_of
from hindcast.pipeline.connectors import (
    AddColumns,
    BatchConnector,
    BlockConnector,
    ConstructionContext,
    Context,
    TargetOptions,
)
from hindcast.pipeline.contracts import check_episodes
from hindcast.rllib.connectors.connector_v2 import ConnectorV2, LearnerConnectorPipeline
from hindcast.rllib.connectors.library import (
    LIBRARY_CONNECTORS,
    AddColumnsFromEpisodesToTrainBatch,
    AddInfosFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    FlattenObservations,
    FrameStackingLearner,
    GeneralAdvantageEstimation,
    default_connectors,
    is_unneeded,
)
from hindcast.rllib.connectors.module_batches import with_batch
from hindcast.rllib.multi_rl_module import MultiRLModule, frozen_copy
from hindcast.user_code import Misuse, raise_user_code_error


class EpisodeConnectorForm:
    """See `ConnectorForm`."""

    def factory(self, name: str) -> Callable[..., Any] | None:
        return LIBRARY_CONNECTORS.get(name)

    def includes(self, candidate: Any) -> bool:
        """Return True if an object is called with episodes."""
        if isinstance(candidate, BlockConnector | BatchConnector | type) or not callable(candidate):
            return False
        return isinstance(candidate, ConnectorV2) or "episodes" in parameters_of(candidate)

    def expand(self, connector: Any) -> Sequence[Any]:
        """Return what a connector consists of, without what a training does anyway.

        A pipeline loses the default connectors at its end. A connector of RLlib that adds columns becomes an
        `AddColumns`, and GAE the options of the algorithm's targets. Any other connector is returned alone.

        Raises:
            SpecError: a training does not need the connector.
        """
        if type(connector) is LearnerConnectorPipeline:
            return _expand_pipeline(connector)
        if type(connector) is GeneralAdvantageEstimation:
            return [TargetOptions({"gamma": connector.gamma, "lambda_": connector.lambda_})]
        if type(connector) in _COLUMN_CONNECTORS:
            adds_all_recorded = isinstance(connector, AddColumnsFromEpisodesToTrainBatch)
            return [AddColumns(connector.added_columns, all_recorded=adds_all_recorded)]
        if is_unneeded(connector) and type(connector) is not AddInfosFromEpisodesToTrainBatch:
            raise _make_unneeded_error(connector)
        return [connector]

    def adapt(self, connectors: Sequence[Any], context: ConstructionContext) -> BlockConnector:
        if type(connectors[-1]) is AddInfosFromEpisodesToTrainBatch:  # no connector reads the infos
            raise _make_unneeded_error(connectors[-1])
        return EpisodeConnector(connectors, context)


FORM = EpisodeConnectorForm()
_COLUMN_CONNECTORS: Final = (
    AddObservationsFromEpisodesToBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddColumnsFromEpisodesToTrainBatch,
)
_FIELD_IN_TEXT: Final = re.compile(r"spec(?:\.\w+)+")
_RESHAPING_CONNECTORS: Final = (FlattenObservations, FrameStackingLearner)


class EpisodeConnector(BlockConnector):
    """A connector over blocks that runs connectors over episodes.

    Args:
        connectors: objects that are called like a `ConnectorV2`.
        context: if its `needs_next_obs` is set, a connector that changes observations in the batch must also set
            `new_obs`.
    """

    def __init__(self, connectors: Sequence[Any], context: ConstructionContext) -> None:
        self.connectors = connectors
        self._spaces = (context.observation_space, context.action_space)
        self._pipeline = LearnerConnectorPipeline(*self._spaces, connectors=connectors)
        self._module = None if context.module is None else MultiRLModule(frozen_copy(context.module))
        self._needs_next_obs = context.needs_next_obs
        self.stochastic = any(bool(getattr(connector, "stochastic", False)) for connector in connectors)
        self.columns = tuple(name for connector in connectors for name in getattr(connector, "columns", ()))
        self.adds_undeclared_columns = not self.columns

    @property
    def name(self) -> str:
        """Names of the classes of the connectors over episodes."""
        return ", ".join(type(connector).__name__ for connector in self.connectors)

    @property
    def function(self) -> Callable[..., Any]:
        """The `__call__` of the first connector over episodes."""
        return type(self.connectors[0]).__call__

    def __call__(self, block: Block, context: Context) -> Block:
        try:
            result = self._run(self._pipeline, block, context)
            check_episodes(result, block.length)
        except (Misuse, ValueError):
            if len(self.connectors) > 1:
                self._raise_first_error(block, context)
            raise
        return result

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

    def _raise_first_error(self, block: Block, context: Context) -> None:
        """Raise the error of the first connector that breaks a rule, by running it with all connectors before it.

        The checks of the pipeline see the connectors as one, and cannot name it.
        """
        for num_connectors, connector in enumerate(self.connectors, 1):
            pipeline = LearnerConnectorPipeline(*self._spaces, connectors=self.connectors[:num_connectors])
            try:
                result = self._run(pipeline, block, replace(context, metrics=MetricsLogger()))
                check_episodes(result, block.length)
            except (Misuse, ValueError) as error:
                raise_user_code_error(
                    error, f"connector {type(connector).__name__}", type(connector).__call__
                )


def make_learner_pipeline(
    entries: Iterable[NamedCall], observation_space: gym.Space | None, action_space: gym.Space | None
) -> LearnerConnectorPipeline:
    """Return a resource's connectors as RLlib's pipeline for learners, followed by RLlib's default connectors.

    Raises:
        SpecError: a name is unknown, or a connector is not in RLlib's form.
        UserCodeError: importing or constructing a connector raised.
    """
    context = ConstructionContext(observation_space, action_space)
    connectors = [
        connector for entry in entries for connector in _flatten(construct_connector(entry, context))
    ]
    for connector in connectors:
        if not FORM.includes(connector):
            raise SpecError(
                f"{type(connector).__name__} cannot be in a LearnerConnectorPipeline, which only "
                "takes connectors in RLlib's form (ConnectorV2).",
                field=FIELD,
            )
    defaults = default_connectors()
    pipeline = LearnerConnectorPipeline(observation_space, action_space, connectors=[*connectors, *defaults])
    pipeline.default_classes = tuple(map(type, defaults))
    return pipeline


def _flatten(entry: Any) -> list[Any]:
    """Return the connectors in an entry: a connector, a pipeline, or nested lists and pipelines of them."""
    if isinstance(entry, list | tuple) or type(entry) is LearnerConnectorPipeline:
        return [connector for element in entry for connector in _flatten(element)]
    return [entry]


def _expand_pipeline(pipeline: LearnerConnectorPipeline) -> list[Any]:
    """Return the connectors up to the last custom one, then what the pipeline requests of the algorithm.

    Raises:
        SpecError: a connector of RLlib would change the observations for which the network is built, or a default
            connector was removed.
    """
    connectors = _flatten(pipeline)
    for cls in pipeline.default_classes:
        if not any(isinstance(connector, cls) for connector in connectors):
            raise SpecError(
                f"lacks {cls.__name__}, a default connector, whose work a training always does: keep it in the "
                "pipeline, and change its result in a connector after it.",
                field=FIELD,
            )
    requests = [
        request
        for connector in connectors
        if type(connector) in (AddNextObservationsFromEpisodesToTrainBatch, GeneralAdvantageEstimation)
        for request in FORM.expand(connector)
    ]
    connectors = [connector for connector in connectors if type(connector) is not GeneralAdvantageEstimation]
    for connector in connectors:
        if type(connector) in _RESHAPING_CONNECTORS:
            raise _make_unneeded_error(connector)
    # Custom connectors may rely on default connectors before them, so only those at the end are dropped.
    while connectors and _is_default(connectors[-1]):
        connectors.pop()
    return [*connectors, *requests]


def _is_default(connector: Any) -> bool:
    """Return True if a training does the connector's work anyway, if no connector follows it."""
    is_used_by_others = type(connector) is AddInfosFromEpisodesToTrainBatch
    return type(connector) in _COLUMN_CONNECTORS or (is_unneeded(connector) and not is_used_by_others)


def _make_unneeded_error(connector: Any) -> SpecError:
    problem = f"{connector_problem(type(connector).__name__)}."
    return SpecError(problem, FIELD, mentions=tuple(_FIELD_IN_TEXT.findall(problem)))
