"""`OfflineData`: from datasets and a resource's `pipeline` section to batches."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from hindcast.api.pipeline import PipelineSpec
from hindcast.api.quantity import parse_bytes
from hindcast.datasets.dataset import Dataset
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, SpecError
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.connector_factory import ConnectorContext, make_connectors
from hindcast.pipeline.connectors import BatchConnector, BlockConnector, Context
from hindcast.pipeline.contracts import check_batch, check_repeatable
from hindcast.pipeline.executors import Executor, Local
from hindcast.pipeline.feeds import Feed, State
from hindcast.pipeline.live_feed import LiveFeed, LiveSource
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.pipeline.mixed_feed import MixedFeed
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.prelearner import prelearner_class
from hindcast.pipeline.residency import default_budget
from hindcast.pipeline.rllib_prelearner import has_rllib_call
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.source_feed import SourceFeed, SourceSettings
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.training_config import TrainingConfig
from hindcast.pipeline.window import Batch, Recipe
from hindcast.user_code import calling, import_subclass, refuse_unused_overrides

_LIVE_ITERATION: Final = 1000
_LOGGED: Final = "learner_connector"
_UNCALLED: Final = {
    "default_map_batches_kwargs": "pipeline.dataWorkers (map_batches_kwargs in Python) says who reads",
    "default_iter_batches_kwargs": "pipeline.prefetchBatches (iter_batches_kwargs in Python) says how far ahead",
}
"""RLlib's methods of `OfflineData` that are not supported, and what to do instead of overriding them."""


class Source(NamedTuple):
    """A dataset to train on.

    Attributes:
        name: where the user has the data, for messages.
        weight: share of batches relative to other sources' weights.
    """

    name: str
    dataset: Dataset
    weight: float = 1.0


def offline_data_class(pipeline: PipelineSpec) -> type[OfflineData]:
    """`OfflineData`, or the user's subclass that `spec.pipeline.offlineData` names.

    Raises:
        SpecError: there is no such class, it is not a subclass, or it overrides a method that is never called.
        UserCodeError: importing it raised.
    """
    if pipeline.offline_data is None:
        return OfflineData
    found = import_subclass(pipeline.offline_data, OfflineData, "spec.pipeline.offlineData")
    refuse_unused_overrides(found, OfflineData, _UNCALLED)
    if not has_own_reader(pipeline):
        return found
    if found.sample is not OfflineData.sample:
        raise SpecError(
            f"{found.__name__} takes a config and overrides sample: what it reads becomes episodes once, before "
            "training; put sample into the pre-learner's __call__(batch), or leave __init__(config) out."
        )
    return OfflineData


def has_own_reader(pipeline: PipelineSpec) -> bool:
    """Whether the user's subclass is in RLlib's form: its `__init__(config)` says what is read, as `data`.

    Raises:
        SpecError: as of `offline_data_class`.
        UserCodeError: importing it raised.
    """
    if pipeline.offline_data is None:
        return False
    found = import_subclass(pipeline.offline_data, OfflineData, "spec.pipeline.offlineData")
    return "config" in inspect.signature(found).parameters and found.__init__ is not OfflineData.__init__


class OfflineData(Feed):
    """Datasets as endless batches; a `Feed`.

    To customise the whole pipeline, subclass it and name the class in `spec.pipeline.offlineData`: override
    `__init__` (what is read) or `sample` (how a batch is made). In RLlib's form `__init__(config)` gets a
    `TrainingConfig` and sets `data`, a dataset of Ray Data, whose rows a pre-learner maps; it is read once, before
    training.

    Args:
        sources: recorded data to train on; several are mixed by weight. None if there are `live` ones alone.
        needs: what the algorithm needs of a batch.
        pipeline: the resource's section; the defaults if None.
        batch_size: items (timesteps or sequences) in a batch of all learners together, at least one for each.
        seed: the run's.
        device: the learner's.
        preprocessing: what stands between environment and module, applied to observations.
        observation_space: the environment's; the first dataset's own if None.
        action_space: the environment's; the first dataset's own if None.
        executor: where units are read; in this process if None.
        connectors: ready connectors, run after those of `pipeline`.
        share: the part of each batch that is this learner's.
        live: what the policy plays during training, mixed with `sources` by weight.
        module: the policy's network, for connectors in RLlib's form: they get a copy.

    Attributes:
        batch_size: see above.
        counters: nothing is counted that `state` does not hold.
        epoch_size: items of all sources together.
        epoch_timesteps: timesteps of all sources together.
        targets: how windows get theirs; to be set before the first batch when `needs.targets`.

    Raises:
        SpecError: a connector or class that does not exist, a residency that is not possible.
        DataError: the data lack a column, or do not fit the spaces.
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
    ) -> None:
        pipeline = pipeline or PipelineSpec()
        device = torch.device(device)
        spec = sources[0].dataset.spec if sources else None
        spaces = (observation_space, action_space)
        if spec is not None:
            spaces = (observation_space or spec.observation_space, action_space or spec.action_space)
        given = ConnectorContext(*spaces, module, next_obs=Columns.NEXT_OBS in needs.columns)
        called_before = has_rllib_call(prelearner_class(pipeline))  # which runs them
        steps = make_connectors(() if called_before else pipeline.connectors, connectors, given)
        self.batch_size = batch_size
        self.counters: dict[str, int] = {}
        self.targets: Targets | None = None
        self._share = shard
        self._batch_connectors = [step for step in steps if isinstance(step, BatchConnector)]
        self._budget = (
            default_budget(device)
            if pipeline.resident_budget is None
            else parse_bytes(pipeline.resident_budget)
        )
        self._settings = SourceSettings(
            needs=needs,
            pipeline=pipeline,
            seed=seed,
            device=device,
            preprocessing=preprocessing,
            observation_space=spaces[0],
            action_space=spaces[1],
            executor=executor or Local(),
            connectors=tuple(step for step in steps if isinstance(step, BlockConnector)),
            extra_columns=frozenset().union(
                *(step.added_columns(spec) for step in steps if spec is not None)
            ),
        )
        self.live_sources = live_sources
        self._live_feeds: list[LiveFeed] = []
        self._refuse_with_live()
        self._weights = [source.weight for source in sources] + [each.weight for each in live_sources]
        self._tried: set[int] = set()
        self._waited = 0.0
        self._sources: list[SourceFeed] = []
        left = self._budget
        for number, source in enumerate(sources):
            self._sources.append(SourceFeed(source.name, source.dataset, self._settings, left, number))
            left -= self._sources[-1].resident_bytes
        self.epoch_size = sum(source.order.epoch_size for source in self._sources)
        self.epoch_timesteps = sum(source.order.epoch_timesteps for source in self._sources)

    @classmethod
    def read_rows(cls, training: Mapping[str, Any]) -> Any:
        """What a subclass in RLlib's form reads."""
        made: Any = cls
        return made(TrainingConfig(training)).data

    @property
    def updates_per_iteration(self) -> int:
        """Batches of a training iteration: `datasetNumItersPerLearner`, or one pass, rounded up; 1,000 without data."""
        given = self._settings.pipeline.dataset_num_iters_per_learner
        return given or math.ceil(self.epoch_size / self.batch_size) or _LIVE_ITERATION

    @property
    def timesteps_per_batch(self) -> int:
        """What a batch counts for: of sequences with their burn-in and padding."""
        return self.batch_size * self._settings.needs.timesteps_per_item

    @property
    def batch_bytes(self) -> int:
        """About how many bytes of recorded data are in a batch, if all of it is recorded; 0 without any."""
        nbytes = sum(source.nbytes for source in self._sources)
        return nbytes * self.timesteps_per_batch // max(1, self.epoch_timesteps)

    @property
    def cursor(self) -> int:
        return self._feed.cursor

    def start(self, iteration: int, updates: int) -> int:  # noqa: ARG002
        """Begin or resume an iteration after so many updates; how many batches are left of it."""
        self._waited = self._feed.metrics()["data_wait_seconds"]
        done = updates % self.updates_per_iteration
        if not done:
            for feed in self._live_feeds:
                feed.reset_returns()
        return self.updates_per_iteration - done

    def iterations(self, iteration: int, updates: int) -> int:
        """Iterations finished; one that an earlier, lower stop cut short is resumed."""
        return min(iteration, updates // self.updates_per_iteration)

    def end(self, metrics: dict[str, float]) -> dict[str, Any]:  # noqa: ARG002
        """What the iteration's result says of the data."""
        feed = self._feed.metrics()
        timers = {"data_wait_s": feed["data_wait_seconds"] - self._waited}
        known = (*(("epoch", "coverage") if self._sources else ()), "targets_age")
        names = [name for name in known if name in feed]
        logged = {_LOGGED: found} if (found := self._settings.metrics.reduce()) else {}
        return {"timers": timers} | {name: feed[name] for name in names} | self._sampled() | logged

    def _sampled(self) -> dict[str, Any]:
        """What was played, under RLlib's names."""
        if not self._live_feeds:
            return {}
        returns = [each for feed in self._live_feeds for each in feed.returns()]
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
        """See `Feed`; of several learners the one's own part."""
        return self.take(self.batch_size, self._share)

    def prioritise(self, priorities: Tensor) -> None:
        self._feed.prioritise(priorities)

    def take(self, count: int, shard: Shard = WHOLE_BATCH) -> Batch:
        """See `Feed`.

        If batches are changed, by connectors of scope `batch` or a custom `sample`, each
        learner makes the whole batch and keeps its part: the result does not depend on the number of learners.
        """
        if type(self).sample is not OfflineData.sample:
            with calling(f"{type(self).__name__}.sample", self.sample):
                batch = self.sample(count)
                check_batch(batch, count)
        elif shard == WHOLE_BATCH or self._batch_connectors:
            batch = self.sample(count)
        else:
            return self._feed.take(count, shard)
        return (
            batch
            if shard == WHOLE_BATCH
            else {leaf: tensor[shard.slice_of(count)] for leaf, tensor in batch.items()}
        )

    def sample(self, num_samples: int) -> Batch:
        """The next `num_samples` items as a batch, leaf -> `[num_samples, ...]` on the learner's device."""
        place = self._feed.cursor
        batch = self._feed.take(num_samples)
        for position, connector in enumerate(self._batch_connectors):
            context = Context(
                self._settings.seed, position, 0, place, connector.stochastic, self._settings.metrics
            )
            with calling(f"connector {connector.name}", connector.function):
                batch = self._connected(batch, num_samples, connector, context)
        return batch

    def state(self) -> State:
        """See `Feed`; with what fixes the batches, and what batch connectors remember."""
        connectors = [connector.state() for connector in self._batch_connectors]
        return {**self._course(), "feed": self._feed.state(), "connectors": connectors}

    def tensors(self) -> Batch:
        return self._feed.tensors()

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        self._refuse_other_batches(state)
        self._feed.seek(state["feed"], tensors)
        for connector, remembered in zip(self._batch_connectors, state["connectors"], strict=True):
            connector.load(remembered)

    def metrics(self) -> dict[str, float]:
        """See `Feed`; and `read_seconds` and `prelearn_seconds`, spent in this process."""
        return self._feed.metrics() | {
            "read_seconds": sum(source.prelearner.read_seconds for source in self._sources),
            "prelearn_seconds": sum(source.prelearner.prelearn_seconds for source in self._sources),
        }

    def close(self) -> None:
        if "_feed" in vars(self):
            self._feed.close()

    def fit_preprocessing(self) -> None:
        """Add the first window of each recorded source to the observation filter's statistics.

        To be called once, before a training that does not resume.

        Raises:
            SpecError: there is a filter, and nothing recorded.
        """
        preprocessing = self._settings.preprocessing
        if not self._sources and preprocessing is not None and preprocessing.filters:
            raise SpecError(
                "model.observationFilter is MeanStd, whose statistics come from recorded data, and there are none: "
                "leave it out, and scale observations in a wrapper of the environment."
            )
        for source in self._sources:
            source.fit_preprocessing()

    def plan(self) -> dict[str, Any]:
        """What will be done and why, as JSON; reads nothing."""
        return {
            "batchSize": self.batch_size,
            "epochSize": self.epoch_size,
            "updatesPerIteration": self.updates_per_iteration,
            "device": str(self._settings.device),
            "residentBudget": self._budget,
            "executor": type(self._settings.executor).__name__,
            "sources": [
                source.plan() | {"share": weight / sum(self._weights)}
                for source, weight in zip(self._sources, self._weights, strict=False)
            ],
            **({"samplerShare": self._weights[-1] / sum(self._weights)} if self.live_sources else {}),
        }

    def _connected(self, batch: Batch, items: int, connector: BatchConnector, context: Context) -> Batch:
        """The first batch is connected twice, with what the connector remembers given back to it in between."""
        once = None
        if context.connector_index not in self._tried:
            self._tried.add(context.connector_index)
            remembered = copy.deepcopy(connector.state())
            once = connector(
                {leaf: tensor.clone() for leaf, tensor in batch.items()},
                replace(context, metrics=MetricsLogger()),
            )
            check_batch(once, items)
            connector.load(remembered)
        connected = connector(batch, context)
        check_batch(connected, items)
        if once is not None:
            check_repeatable(once, connected, exemption=" but what state() returns and load() takes")
        return connected

    def _refuse_with_live(self) -> None:
        if not self.live_sources:
            return
        if self._settings.needs.targets:
            raise SpecError(
                "The algorithm's targets are computed over windows of recorded data, which live samples do not have."
            )
        if self._settings.connectors:
            names = ", ".join(connector.name for connector in self._settings.connectors)
            raise SpecError(
                f"spec.pipeline.connectors: {names} would change recorded data only, not live samples."
            )

    def _course(self) -> State:
        """What fixes the batches in addition to the order of the data."""
        return {"batchSize": self.batch_size, "weights": self._weights}

    def _refuse_other_batches(self, state: State) -> None:
        names = {"batchSize": "timesteps of a batch", "weights": "weights of the inputs"}
        for key, here in self._course().items():
            saved = state.get(key, here)  # earlier checkpoints lack both
            if saved != here:
                raise DataError(
                    f"The position in the data cannot be resumed: the {names[key]} were {saved} when the "
                    f"checkpoint was written and are {here} now; restore that, or start a new run with a higher "
                    "spec.revision."
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
                LiveFeed(live, recipe, self.batch_size, settings.seed) for live in self.live_sources
            ]
        feeds += self._live_feeds
        if len(feeds) == 1:
            return feeds[0]
        return MixedFeed(list(zip(feeds, self._weights, strict=True)), settings.seed, self.batch_size)
