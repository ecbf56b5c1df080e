"""Base classes of learner connectors, which process data between storage and learner.

A connector has a scope. `step` and `episode` connectors turn a `Block` into a `Block` of the same episodes, on a data
worker, as a pure function of the block and the generator of the context; `episode` connectors need complete episodes,
`step` connectors do not. `batch` connectors turn a batch of tensors into another, on the learner; checkpoints contain
their state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from hindcast.episodes.block import Block
from hindcast.episodes.columns import is_per_observation, root
from hindcast.formats.spec import DataSpec
from hindcast.metrics_logger import MetricsLogger
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.rng import generator
from hindcast.pipeline.window import Batch

Scope = Literal["step", "episode", "batch"]


@dataclass(frozen=True)
class Context:
    """The arguments of a call of a connector, in addition to its data.

    Attributes:
        seed: the run's seed.
        connector_index: index of the connector among those over blocks, or among those over batches.
        epoch: number of the pass over the data, from 0; always 0 for batch connectors.
        position: id of the unit; for batch connectors the number of items delivered before the batch.
        stochastic: whether the connector may use `rng`.
        metrics: logs numbers, which results contain under `learner_connector`.
        scope: "block" or "batch": whether the data are a block or a batch.
    """

    seed: int
    connector_index: int
    epoch: int
    position: int
    stochastic: bool
    metrics: MetricsLogger = field(default_factory=MetricsLogger)
    scope: Literal["block", "batch"] = "block"

    @cached_property
    def rng(self) -> np.random.Generator:
        """A Philox generator of (seed, scope, connector_index, epoch, position): the same on any data worker.

        Raises:
            RuntimeError: the connector does not declare `stochastic = True`.
        """
        # Undeclared randomness would be wrong for resident data, which are read once for all epochs.
        if not self.stochastic:
            raise RuntimeError(
                "a connector that uses context.rng must set the class attribute stochastic = True"
            )
        name = "connector" if self.scope == "block" else "batch connector"
        return generator(self.seed, name, self.connector_index, self.epoch, self.position)


@dataclass(frozen=True)
class ConstructionContext:
    """The properties of a training with which its connectors are constructed; see `Context` for those of a call.

    Attributes:
        observation_space: the environment's, or the data's.
        action_space: the environment's, or the data's.
        module: the policy's network; connectors get a copy.
        needs_next_obs: whether the algorithm reads `new_obs`.
    """

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    module: RLModule | None = None
    needs_next_obs: bool = False


class Connector:
    """Base class of connectors over blocks and batches.

    Attributes:
        scope: see the module's docstring.
        stochastic: whether it uses `context.rng`, so that its result differs between epochs.
        reads: names of the stored columns that it reads, in addition to those that batches contain; None reads all.
        columns: names of columns that it adds to batches.
        adds_undeclared_columns: whether it adds columns whose names only its result shows.
    """

    scope: ClassVar[Scope] = "episode"
    stochastic: bool = False
    reads: Collection[str] | None = None
    columns: Collection[str] = ()
    adds_undeclared_columns: bool = False

    @property
    def name(self) -> str:
        """The connector's name in messages."""
        return type(self).__name__

    @property
    def function(self) -> Callable[..., Any]:
        """The function that messages locate by file and line."""
        return type(self).__call__

    def added_columns(self, spec: DataSpec) -> frozenset[str]:  # noqa: ARG002
        """Return the names of the columns that the connector adds to batches: `columns`.

        Override it if they depend on the data, which `spec` describes.
        """
        return frozenset(self.columns)


class BlockConnector(Connector, ABC):
    """A connector of scope `step` or `episode`."""

    @abstractmethod
    def __call__(self, block: Block, context: Context) -> Block:
        """Return a new block, as from `block.with_columns(...)`; do not modify the input in place."""


class BatchConnector(Connector, ABC):
    """A connector of scope `batch`."""

    scope: ClassVar[Scope] = "batch"
    reads: Collection[str] | None = ()

    @abstractmethod
    def __call__(self, batch: Batch, context: Context) -> Batch:
        """Return a new batch, leaf -> `[B, ...]` on the learner's device."""

    def state(self) -> dict[str, Any]:
        """Return the connector's state between batches, as JSON."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of the method `state`."""
        if state:
            raise NotImplementedError(f"{type(self).__name__} has a state() but no load()")


class AddColumns(BlockConnector):
    """Adds further columns to batches, beyond those that the algorithm needs.

    Args:
        columns: names of stored columns, or `new_obs`, `terminateds`, `truncateds`.
        all_recorded: also add every recorded column that has one row per timestep and is not text.
    """

    reads: Collection[str] | None = ()

    def __init__(self, columns: Collection[str], all_recorded: bool = False) -> None:
        self.columns = tuple(columns)
        self._adds_all_recorded = all_recorded

    def __call__(self, block: Block, context: Context) -> Block:  # noqa: ARG002
        return block

    def added_columns(self, spec: DataSpec) -> frozenset[str]:
        if not self._adds_all_recorded:
            return super().added_columns(spec)
        recorded_columns = {
            root(leaf)
            for leaf, leaf_spec in spec.leaves.items()
            if leaf_spec.dtype and not is_per_observation(leaf)
        }
        return super().added_columns(spec) | recorded_columns


class TargetOptions(BlockConnector):
    """Sets options with which the algorithm computes its targets, in place of the training's own.

    Args:
        options: name in Python -> value, such as `{"gamma": 0.9, "lambda_": 0.5}`.
    """

    reads: Collection[str] | None = ()

    def __init__(self, options: Mapping[str, float]) -> None:
        self.options = options

    def __call__(self, block: Block, context: Context) -> Block:  # noqa: ARG002
        return block
