"""Learner connectors: the steps between storage and learner, the library's and the user's own.

A connector has a scope. `step` and `episode` connectors turn a `Block` into a `Block` of the same episodes,
on a data worker, as a pure function of the block and the generator they are given; `episode` says that it
needs complete episodes, `step` that any cut of them would do. `batch` connectors turn a batch of tensors into
another, on the learner; what they remember is in the checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from hindcast.episodes.block import Block
from hindcast.episodes.columns import is_per_observation, root
from hindcast.formats.spec import DataSpec
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.pipeline.rng import generator
from hindcast.pipeline.window import Batch

Scope = Literal["step", "episode", "batch"]


@dataclass(frozen=True)
class Context:
    """What a connector receives in addition to its data.

    Attributes:
        seed: the run's.
        connector: position of the connector in the pipeline.
        epoch: number of the pass over the data, from 0; for batch connectors 0.
        place: id of the unit; for batch connectors the items delivered before the batch.
        stochastic: whether the connector may use `rng`.
        metrics: logs numbers for results, where they are under `learner_connector`.
    """

    seed: int
    connector_index: int
    epoch: int
    position: int
    stochastic: bool
    metrics: MetricsLogger = field(default_factory=MetricsLogger)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Philox(seed, connector, epoch, place): the same numbers on any data worker.

        Raises:
            RuntimeError: the connector does not declare `stochastic = True`.
        """
        if not self.stochastic:
            raise RuntimeError(
                "a connector that uses context.rng must say so with the class attribute stochastic = True"
            )
        return generator(self.seed, "connector", self.connector_index, self.epoch, self.position)


class Connector:
    """Base of connectors over blocks and batches; `ConnectorV2` is the base of those over episodes.

    Attributes:
        scope: see the module.
        stochastic: it uses `context.rng`, so that its result differs between epochs.
        reads: stored columns that it reads; None if that is not known, then all are read.
        columns: columns that batches hold because of it, in addition to those the algorithm needs.
    """

    scope: ClassVar[Scope] = "episode"
    stochastic: bool = False
    reads: Collection[str] | None = None
    columns: Collection[str] = ()

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    @property
    def function(self) -> Callable[..., Any]:
        """The function whose file and line messages give."""
        return type(self).__call__

    def added_columns(self, spec: DataSpec) -> frozenset[str]:  # noqa: ARG002
        """`columns`; to be overridden where they depend on what the data hold."""
        return frozenset(self.columns)


class BlockConnector(Connector, ABC):
    """A connector of scope `step` or `episode`."""

    @abstractmethod
    def __call__(self, block: Block, context: Context) -> Block:
        """The new block, as from `block.with_columns(...)`; the given one must not be changed."""


class BatchConnector(Connector, ABC):
    """A connector of scope `batch`."""

    scope: ClassVar[Scope] = "batch"
    reads: Collection[str] | None = ()

    @abstractmethod
    def __call__(self, batch: Batch, context: Context) -> Batch:
        """The new batch, leaf -> `[B, ...]` on the learner's device."""

    def state(self) -> dict[str, Any]:
        """What must be remembered between batches, as JSON."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Take over `state()`."""
        if state:
            raise NotImplementedError(f"{type(self).__name__} has a state() but no load()")


class AddColumns(BlockConnector):
    """Puts columns into batches that the algorithm does not ask for.

    Args:
        columns: names of stored columns, or `new_obs`, `terminateds`, `truncateds`.
        recorded: also all recorded columns of single steps.
    """

    reads: Collection[str] | None = ()

    def __init__(self, columns: Collection[str], all_recorded: bool = False) -> None:
        self.columns = tuple(columns)
        self._recorded = all_recorded

    def __call__(self, block: Block, context: Context) -> Block:  # noqa: ARG002
        return block

    def added_columns(self, spec: DataSpec) -> frozenset[str]:
        if not self._recorded:
            return super().added_columns(spec)
        recorded = {
            root(leaf) for leaf, what in spec.leaves.items() if what.dtype and not is_per_observation(leaf)
        }
        return super().added_columns(spec) | recorded
