"""`OfflineData` makes batches from datasets and a resource's `pipeline` section."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from hindcast.api.pipeline import PipelineSpec
from hindcast.api.quantity import parse_bytes
from hindcast.datasets.dataset import Dataset
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, SpecError
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.connector_factory import make_connectors
from hindcast.pipeline.connectors import (
    BatchConnector,
    BlockConnector,
    ConstructionContext,
    Context,
    TargetOptions,
)
from hindcast.pipeline.contracts import check_batch
from hindcast.pipeline.executors import Executor, Local
from hindcast.pipeline.feeds import Feed, GatherValues, State
from hindcast.pipeline.live_feed import LiveFeed, LiveSource
from hindcast.pipeline.mixed_feed import MixedFeed
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.prelearner import prelearner_class
from hindcast.pipeline.residency import default_budget
from hindcast.pipeline.rng import seeded_generators
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.source_feed import SourceFeed, SourceSettings
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.timeline import Timeline
from hindcast.pipeline.window import Batch, Recipe
from hindcast.storage.disk_cache import open_disk_cache
from hindcast.user_code import calling, import_subclass, is_user_code, refuse_unused_overrides

_UPDATES_PER_LIVE_ITERATION: Final = 1000
_NUM_TIMELINES: Final = 2
"""Number of the first iterations that have a timeline: the second one reads while it trains."""
_CONNECTOR_METRICS: Final = "learner_connector"


class Source(NamedTuple):
    """A dataset to train on.

    Attributes:
        name: location of the data as the user wrote it, for messages.
        dataset: the opened dataset.
        weight: the source's fraction of batches is its weight over the sum of all sources' weights.
    """

    name: str
    dataset: Dataset
    weight: float = 1.0


def offline_data_class(pipeline: PipelineSpec) -> type[OfflineData]:
    """Return `OfflineData`, or the user's subclass that `spec.pipeline.offlineData` names.

    A subclass in RLlib's form only reads the data, before training; `OfflineData` makes the batches.

    Raises:
        SpecError: the class does not exist, is not a subclass, or it overrides a method that is never called.
        UserCodeError: importing it raised.
    """
    if pipeline.offline_data is None:
        return OfflineData
    cls = import_subclass(pipeline.offline_data, OfflineData, "spec.pipeline.offlineData")
    refuse_unused_overrides(cls)
    return cls.feed_class()


def _refuse_separate_timesteps(pipeline: PipelineSpec, needs: Needs) -> None:
    """Refuse a pre-learner that returns separate timesteps, if the algorithm computes over whole episodes."""
    if not (needs.targets or needs.n_step > 1 or needs.seq_len):
        return
    purpose = "returns" if needs.targets else "n-step returns" if needs.n_step > 1 else "sequences"
    raise SpecError(
        f"is {pipeline.pre_learner!r}, which returns separate timesteps, but the algorithm computes {purpose} "
        "over whole episodes: override _map_to_episodes instead of __call__.",
        field="spec.pipeline.preLearner",
    )


def has_own_reader(pipeline: PipelineSpec) -> bool:
    """Return True if the class that `spec.pipeline.offlineData` names reads rows itself, before training.

    Raises:
        SpecError: see `offline_data_class`.
        UserCodeError: importing it raised.
    """
    if pipeline.offline_data is None:
        return False
    return import_subclass(pipeline.offline_data, OfflineData, "spec.pipeline.offlineData").reads_rows()


class OfflineData(Feed):
    """A `Feed` of batches from the datasets of a training.

    To customise the whole pipeline, subclass it and name the class in `spec.pipeline.offlineData`: override
    `__init__` (what is read) or `sample` (how a batch is made).

    Args:
        sources: recorded data to train on, mixed by weight; empty if there are only `live_sources`.
        needs: the algorithm's needs.
        pipeline: the resource's section; its defaults if None.
        batch_size: items (timesteps or sequences) in the batch of all learners together, at least one per learner.
        seed: the run's seed.
        device: the learner's device.
        preprocessing: the steps between environment and module, applied to observations.
        observation_space: the environment's; the first dataset's if None.
        action_space: the environment's; the first dataset's if None.
        executor: reads the units; `Local`, which reads in this process, if None.
        connectors: connector objects, which run after the connectors of `pipeline`.
        shard: this learner's shard of each batch.
        live_sources: episodes that the policy plays during training, mixed with `sources` by weight.
        module: the policy's network, for connectors in RLlib's form: they get a copy.
        num_learners_here: number of learners that share this machine's memory and disk.

    Attributes:
        batch_size: see above.
        stage_seconds: see `run.training.trainer.Experience`.
        timeline: see `run.training.trainer.Experience`.
        counters: see `run.training.trainer.Experience`; always empty, because `state` contains all that a checkpoint
            needs.
        epoch_size: number of items of all sources together.
        epoch_timesteps: number of timesteps of all sources together.
        target_options: options of the algorithm's targets that connectors set, see `TargetOptions`.
        targets: computes the targets of windows; set it before the first batch if `needs.targets`.

    Raises:
        SpecError: a connector or class does not exist, or the residency is not possible.
        DataError: the data lack a column, or do not match the spaces.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        needs: Needs,
        *,
        batch_size: int,
        pipeline: PipelineSpec | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        preprocessing: Preprocessing | None = None,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        executor: Executor | None = None,
        connectors: Sequence[Any] = (),
        shard: Shard = WHOLE_BATCH,
        live_sources: Sequence[LiveSource] = (),
        module: RLModule | None = None,
        num_learners_here: int = 1,
    ) -> None:
        pipeline = pipeline or PipelineSpec()
        device = torch.device(device)
        spec = sources[0].dataset.spec if sources else None
        spaces = (observation_space, action_space)
        if spec is not None:
            spaces = (observation_space or spec.observation_space, action_space or spec.action_space)
        context = ConstructionContext(*spaces, module, needs_next_obs=Columns.NEXT_OBS in needs.columns)
        # A pre-learner that runs the connectors of `pipeline` did so when the data were prepared.
        runs_connectors = prelearner_class(pipeline).runs_connectors()
        if runs_connectors:
            _refuse_separate_timesteps(pipeline, needs)
        all_connectors = make_connectors(() if runs_connectors else pipeline.connectors, connectors, context)
        self.target_options: dict[str, float] = {}
        for connector in all_connectors:
            if isinstance(connector, TargetOptions):
                self.target_options.update(connector.options)
        self.batch_size = batch_size
        self.counters: dict[str, int] = {}
        self.targets: Targets | None = None
        self._batch_connectors = [
            connector for connector in all_connectors if isinstance(connector, BatchConnector)
        ]
        if pipeline.disk_cache is not None:
            open_disk_cache(parse_bytes(pipeline.disk_cache) // num_learners_here)
        self._budget = (
            default_budget(device, num_learners_here)
            if pipeline.resident_budget is None
            else parse_bytes(pipeline.resident_budget)
        )
        # If connectors or a custom `sample` change whole batches, each learner makes all of a batch, of which it then
        # keeps its shard. Otherwise the sources provide no more than the shard.
        changes_batches = bool(self._batch_connectors) or self.has_custom_sample
        self._output_shard = shard if changes_batches else WHOLE_BATCH
        self._settings = SourceSettings(
            needs=needs,
            pipeline=pipeline,
            seed=seed,
            device=device,
            preprocessing=preprocessing,
            observation_space=spaces[0],
            action_space=spaces[1],
            executor=executor or Local(),
            connectors=tuple(
                connector
                for connector in all_connectors
                if isinstance(connector, BlockConnector) and not isinstance(connector, TargetOptions)
            ),
            extra_columns=frozenset().union(
                *(connector.added_columns(spec) for connector in all_connectors if spec is not None)
            ),
            shard=WHOLE_BATCH if changes_batches else shard,
        )
        self.live_sources = live_sources
        self._live_feeds: list[LiveFeed] = []
        self._check_live_sources()
        self._weights = [source.weight for source in sources] + [
            live_source.weight for live_source in live_sources
        ]
        self._wait_seconds = 0.0
        self._start_seconds: dict[str, float] = {}
        self.stage_seconds: dict[str, float] = {}
        self.timeline: dict[str, list[float]] = {}
        self._longest_wait = 0.0
        self._feed_metrics: dict[str, float] = {}
        self._sources = self._open_sources(sources)
        self.epoch_size = sum(source.order.epoch_size for source in self._sources)
        self.epoch_timesteps = sum(source.order.epoch_timesteps for source in self._sources)

    def _open_sources(self, sources: Sequence[Source]) -> list[SourceFeed]:
        """Create the feeds of sources in order: each gets the rest of the budget, and data that exceed it are streamed.

        Raises:
            SpecError, DataError: see the class.
        """
        source_feeds: list[SourceFeed] = []
        remaining_budget = self._budget
        for source in sources:
            # The sources' windows share the memory of one window.
            share = source.weight / sum(source.weight for source in sources)
            source_feed = SourceFeed(source.name, source.dataset, self._settings, remaining_budget, share)
            source_feed.check_shards(self.batch_size)
            remaining_budget -= source_feed.resident_bytes
            source_feeds.append(source_feed)
        return source_feeds

    @classmethod
    def reads_rows(cls) -> bool:
        """Return True if the class reads rows, which a pre-learner turns into episodes before training."""
        return False

    @classmethod
    def feed_class(cls) -> type[OfflineData]:
        """Return the class that feeds a training: this one, or the default if this one only reads rows.

        Raises:
            SpecError: the class reads rows and overrides a method that is then never called.
        """
        return cls

    @property
    def updates_per_iteration(self) -> int:
        """Updates in an iteration: `datasetNumItersPerLearner`, else those of one pass; 1,000 without recorded data."""
        num_iters = self._settings.pipeline.dataset_num_iters_per_learner
        return num_iters or math.ceil(self.epoch_size / self.batch_size) or _UPDATES_PER_LIVE_ITERATION

    @property
    def timesteps_per_batch(self) -> int:
        """Number of timesteps that a batch counts for, with the burn-in and padding of sequences."""
        return self.batch_size * self._settings.needs.timesteps_per_item

    @property
    def batch_bytes(self) -> int:
        """Approximate bytes of a batch if all of it is recorded data; 0 without recorded data."""
        nbytes = sum(source.nbytes for source in self._sources)
        return nbytes * self.timesteps_per_batch // max(1, self.epoch_timesteps)

    @property
    def cursor(self) -> int:
        return self._feed.cursor

    def start(self, iteration: int, updates: int) -> int:
        """Begin or resume an iteration after `updates` updates; return how many updates of the iteration remain."""
        self._wait_seconds = self._feed.metrics()["data_wait_seconds"]
        self._start_seconds = dict(self._settings.executor.seconds)
        self._settings.executor.timeline = Timeline() if iteration < _NUM_TIMELINES else None
        num_done = updates % self.updates_per_iteration
        if not num_done:
            for feed in self._live_feeds:
                feed.reset_returns()
        return self.updates_per_iteration - num_done

    def num_complete_iterations(self, iteration: int, updates: int) -> int:
        """Return how many of `iteration` iterations are complete after `updates` updates.

        The last one is not if the stop criterion cut it short; it can be resumed.
        """
        return min(iteration, updates // self.updates_per_iteration)

    def end(self, metrics: dict[str, float]) -> dict[str, Any]:  # noqa: ARG002
        """Return the data's metrics for the iteration's result; metrics that user code has logged are then removed.

        `data_wait_s` is that of the learner that waited longest. Call it after `synchronise`.
        """
        timers = {"data_wait_s": self._longest_wait}
        candidates = (*(("epoch", "coverage") if self._sources else ()), "targets_age")
        logged_metrics = self._settings.metrics.reduce()
        return (
            {"timers": timers}
            | {name: self._feed_metrics[name] for name in candidates if name in self._feed_metrics}
            | self._sampling_metrics()
            | ({_CONNECTOR_METRICS: logged_metrics} if logged_metrics else {})
        )

    def _sampling_metrics(self) -> dict[str, Any]:
        """Return metrics of the episodes played, under RLlib's names, and remove those that callbacks have logged."""
        if not self._live_feeds:
            return {}
        returns = [episode_return for feed in self._live_feeds for episode_return in feed.returns()]
        return {
            "num_env_steps_sampled_lifetime": sum(feed.timesteps_played for feed in self._live_feeds),
            "env_runners": {
                "episode_return_mean": sum(returns) / len(returns) if returns else None,
                "num_episodes": len(returns),
                **{
                    name: value for live in self.live_sources for name, value in live.metrics.reduce().items()
                },
            },
        }

    def next(self) -> Batch:
        """See `Feed.next`."""
        return self.take(self.batch_size)

    def synchronise(self, gather: GatherValues) -> None:
        self._feed.synchronise(gather)
        # The longest wait counts, because all learners wait for the one that waits for data.
        self._feed_metrics = self._feed.metrics()
        wait_seconds = self._feed_metrics["data_wait_seconds"] - self._wait_seconds
        self._longest_wait = max(gather(wait_seconds))
        self.stage_seconds = {"wait": wait_seconds} | {
            stage: seconds - self._start_seconds.get(stage, 0.0)
            for stage, seconds in self._settings.executor.seconds.items()
        }
        timeline = self._settings.executor.timeline
        self.timeline = {} if timeline is None else timeline.busy_threads()

    def prioritise(self, priorities: Tensor) -> None:
        self._feed.prioritise(priorities)

    def take(self, count: int) -> Batch:
        """See `Feed.take`.

        If connectors of scope `batch` or a custom `sample` change batches, each learner reads all data, makes the whole
        batch and keeps its shard, so that the result does not depend on the number of learners.
        """
        if self.has_custom_sample:
            with calling(f"{type(self).__name__}.sample", self.sample):
                batch = self.call_sample(count)
                check_batch(batch, count)
        else:
            batch = self.sample(count)
        if self._output_shard == WHOLE_BATCH:
            return batch
        return {leaf: tensor[self._output_shard.slice_of(count)] for leaf, tensor in batch.items()}

    @property
    def has_custom_sample(self) -> bool:
        """True if a user's `sample` makes the batches."""
        return is_user_code(type(self).sample)

    def call_sample(self, count: int) -> Batch:
        """Return the batch of a user's `sample`, in the form that the class has."""
        return self.sample(count)

    def open_reader(self, document: Callable[[], Mapping[str, Any]]) -> None:
        """Construct the object of the user's that reads rows and makes the batches, if there is one.

        Args:
            document: returns the training's options, as JSON.
        """

    def sample(self, num_samples: int) -> Batch:
        """Return the next `num_samples` items, leaf -> `[num_samples, ...]` on the learner's device.

        Several learners get their shards of them, unless batches are changed as a whole (see `take`).
        """
        cursor = self._feed.cursor
        batch = self._feed.take(num_samples)
        for index, connector in enumerate(self._batch_connectors):
            context = Context(
                self._settings.seed,
                index,
                0,
                cursor,
                connector.stochastic,
                self._settings.metrics,
                scope="batch",
            )
            with (
                calling(f"connector {connector.name}", connector.function),
                seeded_generators(self._settings.seed, "batch connector", index, cursor),
            ):
                batch = connector(batch, context)
                check_batch(batch, num_samples)
        return batch

    def state(self) -> State:
        """See `Feed.state`; includes the settings of batches and the state of batch connectors."""
        connectors = [connector.state() for connector in self._batch_connectors]
        return {**self._batch_settings(), "feed": self._feed.state(), "connectors": connectors}

    def tensors(self) -> Batch:
        return self._feed.tensors()

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        self._check_same_batches(state)
        self._feed.seek(state["feed"], tensors)
        for connector, connector_state in zip(self._batch_connectors, state["connectors"], strict=True):
            connector.load(connector_state)

    def metrics(self) -> dict[str, float]:
        return self._feed.metrics()

    def close(self) -> None:
        if "_feed" in vars(self):  # only a feed that has been created
            self._feed.close()
        self._settings.executor.close()

    def fit_preprocessing(self, rewards_only: bool = False) -> None:
        """Compute the statistics of the preprocessing from the first window of each recorded source.

        Call it once, before a training that does not resume.

        Args:
            rewards_only: the observation filter has its statistics from another policy.

        Raises:
            SpecError: there is a filter but no recorded data.
            DataError: a column whose missing values are replaced has no values.
        """
        preprocessing = self._settings.preprocessing
        if not self._sources and preprocessing is not None and preprocessing.filters:
            raise SpecError(
                "is MeanStd, which computes its statistics from recorded data, but there are "
                "no recorded data: set it to None, and scale observations in a wrapper of the environment.",
                field="model.observationFilter",
            )
        if not self._sources and preprocessing is not None and preprocessing.needs_reward_statistics:
            raise SpecError(
                "is fitted to recorded data, but there are no recorded data: leave it out, and set rewards.scale.",
                field="spec.rewards.normalize",
                mentions=("rewards.scale",),
            )
        if self._sources and preprocessing is not None:
            blocks = (block for source in self._sources for block in source.first_blocks())
            preprocessing.fit(blocks, rewards_only=rewards_only)

    def reward_blocks(self) -> Iterator[Block]:
        """Yield all recorded episodes once, see `SourceFeed.reward_blocks`; they are read only when iterated over."""
        return (block for source in self._sources for block in source.reward_blocks())

    def plan(self) -> dict[str, Any]:
        """Return what a training will do with the data and why, as JSON; reads no data."""
        return {
            "batchSize": self.batch_size,
            "epochSize": self.epoch_size,
            "updatesPerIteration": self.updates_per_iteration,
            "device": str(self._settings.device),
            "residentBudget": self._budget,
            "executor": type(self._settings.executor).__name__,
            "sources": [
                source.plan() | {"share": weight / sum(self._weights)}
                # Not strict: the weights of live sources follow those of recorded data.
                for source, weight in zip(self._sources, self._weights, strict=False)
            ],
            **({"samplerShare": self._weights[-1] / sum(self._weights)} if self.live_sources else {}),
        }

    def _check_live_sources(self) -> None:
        if not self.live_sources:
            return
        if self._settings.needs.targets:
            raise SpecError(
                "The algorithm's targets require windows of recorded data, which live samples do not have."
            )
        if self._settings.connectors:
            names = ", ".join(connector.name for connector in self._settings.connectors)
            raise SpecError(
                f"{names} would change only recorded data, not live samples: leave these connectors out.",
                field="spec.pipeline.connectors",
            )

    def _batch_settings(self) -> State:
        """Return the settings that determine the batches in addition to the order of the data."""
        return {"batchSize": self.batch_size, "weights": self._weights}

    def _check_same_batches(self, state: State) -> None:
        setting_names = {"batchSize": "items per batch", "weights": "weights of the inputs"}
        for key, current in self._batch_settings().items():
            saved = state[key]
            if saved != current:
                raise DataError(
                    f"The position in the data cannot be resumed: the {setting_names[key]} were {saved} when the "
                    f"checkpoint was written and are {current} now. Undo the change, or start a new run with a higher "
                    "spec.revision.",
                    mentions=("spec.revision",),
                )

    @cached_property
    def _feed(self) -> Feed:
        settings = self._settings
        if settings.needs.targets and self.targets is None:
            raise RuntimeError("the algorithm has targets: set `targets` before the first batch")
        targets = self.targets if settings.needs.targets else None
        feeds = [source.feed(self.batch_size, targets) for source in self._sources]
        if self.live_sources:
            needs = settings.needs.with_state_column(frozenset({Columns.STATE_OUT}))
            recipe = Recipe(needs, settings.preprocessing, settings.device)
            self._live_feeds = [
                LiveFeed(live, recipe, self.batch_size, settings.seed, settings.shard)
                for live in self.live_sources
            ]
        feeds += self._live_feeds
        if len(feeds) == 1:
            return feeds[0]
        return MixedFeed(list(zip(feeds, self._weights, strict=True)), settings.seed, self.batch_size)
