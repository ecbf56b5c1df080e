"""`SourceFeed`: one dataset of a training: its order, its pre-learner, where it lives, its feed."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from hindcast.api.pipeline import PipelineSpec
from hindcast.api.quantity import parse_bytes
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.validate import check_spec
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, leaves_of, root
from hindcast.errors import DataError, SpecError
from hindcast.models.preprocessing import Preprocessing
from hindcast.pipeline.connector_factory import EpisodeConnector
from hindcast.pipeline.connectors import BlockConnector, Context
from hindcast.pipeline.draws import ReplayFeed
from hindcast.pipeline.executors import Executor, UnitInEpoch
from hindcast.pipeline.feeds import Feed, ResidentFeed, StreamingFeed
from hindcast.pipeline.items import count_items
from hindcast.pipeline.loader import Loader
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.order import Order
from hindcast.pipeline.prelearner import (
    OfflinePreLearner,
    constructor_kwargs,
    guard_prelearner,
    unit_prelearner_class,
)
from hindcast.pipeline.residency import choose_residency, data_bytes
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.window import Recipe, WindowData
from hindcast.user_code import calling


@dataclass(frozen=True)
class SourceSettings:
    """What all sources of a training share; see `OfflineData`.

    Attributes:
        connectors: those over blocks.
        added: columns that connectors want in batches.
        logged: what they log.
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
    metrics: MetricsLogger = field(default_factory=MetricsLogger)


class SourceFeed:
    """One dataset of a training.

    Args:
        name: where the user has the data, for messages.
        dataset: opened.
        budget: bytes that its data may take on the device.
        number: of the dataset among those of the training.

    Attributes:
        order: when each timestep is delivered.
        prelearner: what units go through.
        nbytes: bytes of all data as batches hold them.
        resident_bytes: bytes that the data take on the device for the whole run; 0 when they are streamed.

    Raises:
        SpecError: a residency that is not possible, a pre-learner class that does not exist.
        DataError: the data lack a column, or do not fit the spaces.
        UserCodeError: making the user's pre-learner raised.
    """

    def __init__(
        self, name: str, dataset: Dataset, settings: SourceSettings, budget: int, number: int = 0
    ) -> None:
        first = dataset.locate(dataset.units[0], 0)
        check_spec(dataset.spec, settings.observation_space, settings.action_space, str(first))
        self.name = name
        self._number = number
        self._dataset = dataset
        self._settings = settings
        stored = frozenset(root(leaf) for leaf in dataset.spec.leaves)
        added = settings.extra_columns | self._found_by_connectors()
        needs = settings.needs.with_columns(added).with_state_column(stored | added)
        recipe = Recipe(needs, settings.preprocessing, settings.device)
        self._columns = sorted(needs.columns)
        self.order = _order(dataset, settings)
        self.prelearner = self._make_prelearner(needs)
        self.nbytes = data_bytes(dataset.spec, recipe, dataset.num_steps, dataset.num_episodes)
        self._residency = choose_residency(
            settings.pipeline.residency, self.nbytes, budget, self._stochastic()
        )
        self.resident_bytes = self.nbytes if self._residency.is_resident else 0
        self._check_sampling()
        self._prelearn = guard_prelearner(self.prelearner)
        self._loader = Loader(dataset, self.order, self._stream, recipe, name)

    def feed(self, batch_size: int, targets: Targets | None) -> Feed:
        """A new feed at the start of epoch 0."""
        if self._settings.needs.sampling != "epochs":
            return ReplayFeed(self._loader, batch_size)
        kind = ResidentFeed if self._residency.is_resident else StreamingFeed
        return kind(self._loader, batch_size, targets)

    def load_all(self) -> WindowData:
        """All data as one window, as they are in epoch 0."""
        return self._loader.load_all(epoch=0)

    def fit_preprocessing(self) -> None:
        """Add the observations of epoch 0's first window to the observation filter's statistics."""
        preprocessing = self._settings.preprocessing
        if preprocessing is None or not preprocessing.filters:
            return
        window, _ = self.order.locate(0)
        work = (UnitInEpoch(self._dataset.units[unit], window.epoch) for unit in window.units)
        for block in self._stream(work):
            observations = leaves_of(Columns.OBS, block.columns)
            preprocessing.update({leaf: block.columns[leaf] for leaf in observations})

    def plan(self) -> dict[str, Any]:
        """What will be done and why, as JSON."""
        windows = self.order.windows(0)
        largest = max(window.num_steps for window in windows)
        return {
            "name": self.name,
            "episodes": self._dataset.num_episodes,
            "timesteps": self._dataset.num_steps,
            "units": len(self._dataset.units),
            "windows": len(windows),
            "windowSteps": largest,
            "feed": self._kind,
            "reason": self._residency.reason,
            "dataBytes": self.nbytes,
            "windowBytes": self.nbytes * largest // self._dataset.num_steps,
            "columns": self._columns,
        }

    @property
    def _kind(self) -> str:
        if self._settings.needs.sampling != "epochs":
            return "Draws"
        return "Resident" if self._residency.is_resident else "Streaming"

    def _stream(self, work: Iterable[UnitInEpoch]) -> Generator[Block, None, None]:
        for block in self._settings.executor.stream(self._number, work, self._prelearn):
            self._settings.metrics.add(block.logged_metrics)
            yield block

    def _found_by_connectors(self) -> frozenset[str]:
        """The columns that connectors over episodes add to the first unit, where they do not say which."""
        if not any(isinstance(each, EpisodeConnector) and not each.columns for each in self._connectors()):
            return frozenset()
        made = guard_prelearner(self._make_prelearner(self._settings.needs))(self._dataset.units[0], 0)
        return frozenset(root(leaf) for leaf in made.columns.keys() - self._dataset.spec.leaves.keys())

    def _make_prelearner(self, needs: Needs) -> OfflinePreLearner:
        settings = self._settings
        kind = unit_prelearner_class(settings.pipeline)
        custom = kind is not OfflinePreLearner
        if not custom:
            self._check_columns()
        with calling(f"making the pre-learner {kind.__name__}"):
            return kind(
                self._dataset,
                columns=None if custom else self._columns_to_read(needs),
                connectors=self._connectors(),
                seed=settings.seed,
                validate=settings.pipeline.validate_data,
                observation_space=settings.observation_space,
                action_space=settings.action_space,
                normalized_actions=self._dataset.spec.normalized_actions
                and _changes_actions(settings.preprocessing),
                **(constructor_kwargs(kind, settings.pipeline.pre_learner_kwargs) if custom else {}),
            )

    def _connectors(self) -> Sequence[BlockConnector]:
        """Those of the training; before them, the environment's actions become a module's."""
        preprocessing = self._settings.preprocessing
        if preprocessing is None or self._dataset.spec.normalized_actions:
            return self._settings.connectors
        return [ModuleActions(preprocessing), *self._settings.connectors]

    def _check_columns(self) -> None:
        stored = {root(leaf) for leaf in self._dataset.spec.leaves}
        missing = self._settings.needs.stored_columns - stored - self._settings.extra_columns
        if missing:
            raise DataError(
                f"{self.name} has no column {', '.join(sorted(missing))}, which the algorithm needs; "
                f"it has {', '.join(sorted(stored))}."
            )

    def _check_sampling(self) -> None:
        sampling = self._settings.needs.sampling
        if sampling == "epochs":
            return
        if self._settings.pipeline.sampling == "WithReplacement":
            raise SpecError(
                "spec.pipeline.sampling is WithReplacement, which draws from a window at a time, and the algorithm "
                f"draws from all data ({sampling}); leave it out."
            )
        if not self._residency.is_resident:
            raise SpecError(
                f"{self.name}: the algorithm draws from all data ({sampling}), which needs them in the learner's "
                f"memory, but they are streamed: {self._residency.reason}; leave spec.pipeline.residency at Auto and "
                "raise spec.pipeline.residentBudget, or let the algorithm learn in epochs."
            )

    def _columns_to_read(self, needs: Needs) -> frozenset[str] | None:
        """None, which is all, where a connector does not say what it reads."""
        wanted = set(needs.stored_columns)
        for connector in self._settings.connectors:
            if connector.reads is None:
                return None
            wanted.update(connector.reads)
        return frozenset(root(leaf) for leaf in self._dataset.spec.leaves if root(leaf) in wanted)

    def _stochastic(self) -> list[str]:
        names = [connector.name for connector in self._settings.connectors if connector.stochastic]
        return [type(self.prelearner).__name__, *names] if self.prelearner.stochastic else names


class ModuleActions(BlockConnector):
    """Scales recorded actions from the environment's bounds to those within which the module acts."""

    reads: Collection[str] | None = ()

    def __init__(self, preprocessing: Preprocessing) -> None:
        self._preprocessing = preprocessing

    def __call__(self, block: Block, context: Context) -> Block:  # noqa: ARG002
        actions = leaves_of(Columns.ACTIONS, block.columns)
        scaled = {name: self._preprocessing.to_module(name, block.columns[name]) for name in actions}
        return block.with_columns({**block.columns, **scaled})


def _order(dataset: Dataset, settings: SourceSettings) -> Order:
    needs = settings.needs
    items = None
    if needs.seq_len:
        items = np.array([count_items(unit.lengths, needs).sum() for unit in dataset.units], dtype=np.int64)
    return Order(
        np.array([unit.lengths.sum() for unit in dataset.units], dtype=np.int64),
        np.array([unit.nbytes for unit in dataset.units], dtype=np.int64),
        seed=settings.seed,
        window_steps=settings.pipeline.window_steps,
        window_bytes=parse_bytes(settings.pipeline.window_bytes),
        replacement=settings.pipeline.sampling == "WithReplacement",
        unit_items=items,
    )


def _changes_actions(preprocessing: Preprocessing | None) -> bool:
    if preprocessing is None:
        return False
    options = preprocessing.to_json()
    return bool(options["normalizeActions"] or options["clipActions"])
