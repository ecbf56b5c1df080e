"""`SourceFeed`: one dataset of a training, with its order, pre-learner, residency and feed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch

from hindcast.api.pipeline import PipelineSpec, index_bytes
from hindcast.api.quantity import parse_bytes
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.space_fitting import fit_to_spaces
from hindcast.datasets.units import unit_sizes
from hindcast.datasets.validate import check_spec
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, leaves_of, root
from hindcast.errors import DataError, SpecError
from hindcast.formatting import plural
from hindcast.metrics_logger import MetricsLogger
from hindcast.models.preprocessing import Preprocessing
from hindcast.pipeline.connectors import BlockConnector, Context
from hindcast.pipeline.draws import ReplayFeed
from hindcast.pipeline.executors import Executor, PreLearn
from hindcast.pipeline.feeds import Feed
from hindcast.pipeline.items import count_items
from hindcast.pipeline.lane_feed import LaneFeed
from hindcast.pipeline.loader import Loader, cancel
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.order import Order
from hindcast.pipeline.prelearner import (
    OfflinePreLearner,
    constructor_kwargs,
    guard_prelearner,
    prelearner_class,
)
from hindcast.pipeline.residency import choose_residency, data_bytes
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.window import Recipe, WindowData
from hindcast.user_code import calling

_UNITS_AT_A_TIME: Final = 8
"""Units that are read at a time when statistics are fitted."""


@dataclass(frozen=True)
class SourceSettings:
    """The settings of all sources of a training; see `OfflineData`.

    Attributes:
        connectors: the connectors over blocks.
        extra_columns: columns that connectors add to batches.
        shard: this learner's part of the data.
        metrics: logs the connectors' metrics.
    """

    needs: Needs
    pipeline: PipelineSpec
    seed: int
    device: torch.device
    preprocessing: Preprocessing | None
    observation_space: gym.Space | None
    action_space: gym.Space | None
    executor: Executor
    connectors: tuple[BlockConnector, ...]
    extra_columns: frozenset[str]
    shard: Shard = WHOLE_BATCH
    metrics: MetricsLogger = field(default_factory=MetricsLogger)


class SourceFeed:
    """One dataset of a training.

    Args:
        name: location of the data as the user wrote it, for messages.
        dataset: the opened dataset.
        settings: settings of the training.
        budget: maximum bytes of the data on the device.
        share: fraction of the window that this dataset may fill.

    Attributes:
        order: the order of delivery.
        prelearner: turns units into blocks.
        nbytes: bytes that all data occupy if they are on the device of one learner, without the columns that connectors
            add.
        resident_bytes: bytes that stay on the device for the whole run; 0 if the data are streamed.

    Raises:
        SpecError: the residency is not possible, or the pre-learner class does not exist.
        DataError: the data lack a column, or do not match the spaces.
        UserCodeError: constructing the user's pre-learner raised.
    """

    def __init__(
        self, name: str, dataset: Dataset, settings: SourceSettings, budget: int, share: float = 1.0
    ) -> None:
        dataset = fit_to_spaces(dataset, settings.observation_space, settings.action_space)
        first_location = dataset.locate(dataset.units[0], 0)
        check_spec(dataset.spec, settings.observation_space, settings.action_space, *first_location)
        self.name = name
        self._dataset = dataset
        self._settings = settings
        stored_columns = frozenset(root(leaf) for leaf in dataset.spec.leaves)
        extra_columns = settings.extra_columns | self._columns_from_connectors()
        all_columns = stored_columns | extra_columns
        needs = (
            settings.needs.with_columns(extra_columns)
            .with_state_column(all_columns)
            .with_durations(all_columns)
        )
        recipe = Recipe(needs, settings.preprocessing, settings.device)
        self._columns = sorted(needs.columns)
        self.order = _make_order(dataset, settings, share)
        self.prelearner = self._make_prelearner(needs)
        self.nbytes = data_bytes(dataset.spec, recipe, dataset.num_steps, dataset.num_episodes)
        is_divided = needs.sampling == "epochs"
        device_bytes = -(-self.nbytes // settings.shard.size) if is_divided else self.nbytes
        self._residency = choose_residency(
            settings.pipeline.residency, device_bytes, budget, self._stochastic_steps()
        )
        self.resident_bytes = device_bytes if self._residency.is_resident else 0
        self._check_sampling()
        self._loader = Loader(
            dataset,
            self.order,
            settings.executor,
            guard_prelearner(self.prelearner),
            recipe,
            name,
            settings.metrics.add,
        )

    def feed(self, batch_size: int, targets: Targets | None) -> Feed:
        """Create a feed at the start of epoch 0."""
        shard = self._settings.shard
        if self._settings.needs.sampling != "epochs":
            return ReplayFeed(self._loader, batch_size, shard)
        return LaneFeed(self._loader, batch_size, targets, shard, self._residency.is_resident)

    def load_all(self) -> WindowData:
        """Return all data as one window, as they are in epoch 0."""
        return self._loader.load_all(epoch=0)

    def first_blocks(self) -> Iterator[Block]:
        """Yield the blocks of the units in the lanes' first windows, to which statistics are fitted.

        All learners read all of these units, so that they have the same statistics.
        """
        windows = [self.order.windows(lane, 0)[0] for lane in range(self.order.num_lanes)]
        units = list(dict.fromkeys(unit for window in windows for unit in window.pieces[:, 0].tolist()))
        for block in self._read(units, self._loader.prelearn):
            self._settings.metrics.add(block.logged_metrics)
            yield block

    def reward_blocks(self) -> Iterator[Block]:
        """Yield the blocks of all units, with the rewards and the columns that the user's code reads."""
        prelearner = self._make_prelearner(Needs(frozenset({Columns.REWARDS})))
        return self._read(range(len(self._dataset.units)), guard_prelearner(prelearner))

    def _read(self, units: Sequence[int], prelearn: PreLearn) -> Iterator[Block]:
        """Yield the blocks of units."""
        for first in range(0, len(units), _UNITS_AT_A_TIME):
            futures = [
                self._settings.executor.submit(prelearn, self._dataset.units[unit], 0, lambda block: block)
                for unit in units[first : first + _UNITS_AT_A_TIME]
            ]
            try:
                yield from (future.result() for future in futures)
            finally:
                cancel(futures)  # after an error, no thread may read when the executor is closed

    def plan(self) -> dict[str, Any]:
        """Return what will be done with the data and why, as JSON."""
        windows = [self.order.windows(lane, 0) for lane in range(self.order.num_lanes)]
        max_window_items = sum(max(window.num_items for window in lane_windows) for lane_windows in windows)
        window_steps = round(max_window_items * self._dataset.num_steps / self.order.epoch_size)
        return {
            "name": self.name,
            "episodes": self._dataset.num_episodes,
            "timesteps": self._dataset.num_steps,
            "units": len(self._dataset.units),
            "lanes": self.order.num_lanes,
            "windows": sum(map(len, windows)),
            "windowSteps": window_steps,
            "feed": self._feed_kind,
            "reason": self._residency.reason,
            "indexBytes": index_bytes(len(self._dataset.units), self._dataset.num_episodes),
            "dataBytes": self.nbytes,
            "windowBytes": self.nbytes * window_steps // self._dataset.num_steps,
            # Resident: the data of the learner's lanes, or all data if items are drawn from all of them. Streaming: the
            # windows in use and the next ones.
            "learnerBytes": self.resident_bytes
            or 2 * self.nbytes * window_steps // self._dataset.num_steps // self._settings.shard.size,
            "columns": self._columns,
        }

    @property
    def _feed_kind(self) -> str:
        if self._settings.needs.sampling != "epochs":
            return "Draws"
        return "Resident" if self._residency.is_resident else "Streaming"

    def _columns_from_connectors(self) -> frozenset[str]:
        """Return the columns that connectors add without declaring them, as the block of the first unit shows."""
        if not any(connector.adds_undeclared_columns for connector in self._settings.connectors):
            return frozenset()
        block = guard_prelearner(self._make_prelearner(self._settings.needs))(self._dataset.units[0], 0)
        return frozenset(root(leaf) for leaf in block.columns.keys() - self._dataset.spec.leaves.keys())

    def _make_prelearner(self, needs: Needs) -> OfflinePreLearner:
        settings = self._settings
        cls = prelearner_class(settings.pipeline).unit_class()
        is_custom = cls is not OfflinePreLearner
        # A custom pre-learner reads all columns and may add those that the data lack.
        if not is_custom:
            self._check_columns()
        with calling(f"creating the pre-learner {cls.__name__}"):
            return cls(
                self._dataset,
                columns=None if is_custom else self._columns_to_read(needs),
                connectors=self._block_connectors(),
                seed=settings.seed,
                validate=settings.pipeline.validate_data,
                observation_space=settings.observation_space,
                action_space=settings.action_space,
                normalized_actions=self._dataset.spec.normalized_actions
                and _changes_actions(settings.preprocessing),
                fillable={} if settings.preprocessing is None else settings.preprocessing.fillable,
                **(constructor_kwargs(cls, settings.pipeline.pre_learner_kwargs) if is_custom else {}),
            )

    def _block_connectors(self) -> Sequence[BlockConnector]:
        """Return the training's connectors, after one that scales the environment's actions to the module's."""
        preprocessing = self._settings.preprocessing
        if preprocessing is None or self._dataset.spec.normalized_actions:
            return self._settings.connectors
        return [ModuleActions(preprocessing), *self._settings.connectors]

    def _check_columns(self) -> None:
        stored_columns = {root(leaf) for leaf in self._dataset.spec.leaves}
        missing_columns = self._settings.needs.stored_columns - stored_columns - self._settings.extra_columns
        if missing_columns:
            raise DataError(
                f"{self.name} has no column {', '.join(sorted(missing_columns))}, which the algorithm needs; "
                f"it has {', '.join(sorted(stored_columns))}."
            )

    def check_shards(self, batch_size: int) -> None:
        """Check that every batch has an item for every learner.

        Raises:
            SpecError: some learners would get an empty shard.
        """
        num_learners = self._settings.shard.size
        if num_learners == 1 or self._settings.needs.sampling != "epochs":
            return
        num_lanes = self.order.num_lanes
        shards = [Shard(rank, num_learners) for rank in range(num_learners)]
        if num_learners > num_lanes or batch_size <= max(map(self.order.max_gap, shards)):
            raise SpecError(
                f"makes {num_learners} learners, but {self.name} is divided into {plural(num_lanes, 'lane')}, and a "
                f"batch of {plural(batch_size, 'item')} would have none for some learners. Use fewer learners, or "
                "larger batches.",
                field="spec.learners",
            )

    def _check_sampling(self) -> None:
        sampling = self._settings.needs.sampling
        if sampling == "epochs":
            return
        if self._settings.pipeline.sampling == "WithReplacement":
            raise SpecError(
                "is WithReplacement, which draws from one window at a time, but the algorithm "
                f"draws from all data ({sampling}). Leave spec.pipeline.sampling out.",
                field="spec.pipeline.sampling",
                mentions=("spec.pipeline.sampling",),
            )
        if not self._residency.is_resident:
            raise SpecError(
                f"{self.name}: the algorithm draws from all data ({sampling}), which requires them in the learner's "
                f"memory, but they are streamed: {self._residency.reason}. Leave spec.pipeline.residency at Auto and "
                "raise spec.pipeline.residentBudget, or let the algorithm learn in epochs.",
                mentions=(
                    "spec.pipeline.residency",
                    "spec.pipeline.residentBudget",
                ),
            )

    def _columns_to_read(self, needs: Needs) -> frozenset[str] | None:
        """Return the names of the columns to read; None reads all, if a connector does not declare what it reads."""
        names = set(needs.stored_columns)
        for connector in self._settings.connectors:
            if connector.reads is None:
                return None
            names.update(connector.reads)
        return frozenset(root(leaf) for leaf in self._dataset.spec.leaves if root(leaf) in names)

    def _stochastic_steps(self) -> list[str]:
        names = [connector.name for connector in self._settings.connectors if connector.stochastic]
        return [type(self.prelearner).__name__, *names] if self.prelearner.stochastic else names


class ModuleActions(BlockConnector):
    """A connector that converts recorded actions and their densities from the environment's units to the module's."""

    reads: Collection[str] | None = ()

    def __init__(self, preprocessing: Preprocessing) -> None:
        self._preprocessing = preprocessing

    def __call__(self, block: Block, context: Context) -> Block:  # noqa: ARG002
        actions = leaves_of(Columns.ACTIONS, block.columns)
        scaled = {name: self._preprocessing.to_module(name, block.columns[name]) for name in actions}
        if Columns.ACTION_LOGP in block.columns:
            logp = block.columns[Columns.ACTION_LOGP]
            scaled[Columns.ACTION_LOGP] = self._preprocessing.to_module_logp(logp)
        return block.with_columns({**block.columns, **scaled})


def _make_order(dataset: Dataset, settings: SourceSettings, share: float) -> Order:
    needs, sizes = settings.needs, unit_sizes(dataset.units)
    unit_items = None
    if needs.seq_len:
        unit_items = np.array(
            [count_items(unit.lengths, needs).sum() for unit in dataset.units], dtype=np.int64
        )
    return Order(
        sizes.steps,
        sizes.nbytes,
        seed=settings.seed,
        window_steps=max(1, int(settings.pipeline.window_steps * share)),
        window_bytes=max(1, int(parse_bytes(settings.pipeline.window_bytes) * share)),
        replacement=settings.pipeline.sampling == "WithReplacement",
        unit_items=unit_items,
    )


def _changes_actions(preprocessing: Preprocessing | None) -> bool:
    if preprocessing is None:
        return False
    options = preprocessing.to_json()
    return bool(options["normalizeActions"] or options["clipActions"])
