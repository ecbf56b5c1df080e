"""`OfflinePreLearner` turns a unit of a dataset into the block that batches are cut from. It runs on data workers."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.units import Unit
from hindcast.datasets.validate import check_block, check_numbers, check_spec
from hindcast.episodes.block import Block
from hindcast.episodes.convert import episodes_to_block
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.formats.spec import DataSpec
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.pipeline.connectors import BlockConnector, Context
from hindcast.pipeline.contracts import (
    REPEATABILITY_RULES,
    as_read_only,
    check_episodes,
    check_mapped_episodes,
    check_observations,
    check_repeatable,
)
from hindcast.pipeline.executors import PreLearn
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.pipeline.multi_rl_module import MultiRLModule
from hindcast.pipeline.rllib_prelearner import (
    call_mapper,
    has_rllib_call,
    has_rllib_mapper,
    is_in_rllib_form,
    items_to_episodes,
    mapper_name,
    prelearn_rows,
    rows_to_episodes,
    sample_batches_to_episodes,
)
from hindcast.pipeline.training_config import TrainingConfig
from hindcast.pipeline.turn_lock import release_turn
from hindcast.user_code import Misuse, calling, import_subclass, is_user_code, refuse_unused_overrides

_NO_BUFFER: Final = "timesteps are shuffled in windows (pipeline.windowSteps), not drawn from a buffer"
_UNSUPPORTED_OVERRIDES: Final = {
    "_validate_episodes": "override _map_to_episodes(self, block), and raise there",
    "_postprocess_and_sample": "override _map_to_episodes(self, block), or sample in a subclass of OfflineData",
    "_should_module_be_updated": "the only module is always trained",
    "build_learner_connector": "override AlgorithmConfig.build_learner_connector",
    "default_prelearner_buffer_class": _NO_BUFFER,
    "default_prelearner_buffer_kwargs": _NO_BUFFER,
}
"""RLlib's methods of a pre-learner that are never called -> what to do instead of overriding them."""


class OfflinePreLearner:
    """A callable that reads a unit, maps it to episodes, validates them and runs the connectors.

    To customise more than a connector can, subclass it and name the class in `spec.pipeline.preLearner`: override
    `_map_to_episodes` or `__call__`; `__init__` may take options (`spec.pipeline.preLearnerKwargs`) and must pass all
    others to `super().__init__`. The number of episodes and their lengths must not change, since they determine the
    order of batches. For files that contain no timesteps (text, images, binary), override `map_rows`, which makes
    episodes of them.

    In RLlib's form it maps rows of files, once, before training: `_map_to_episodes(batch, ...)`, static or not, and
    `_map_sample_batch_to_episode(batch, ...)` return episodes; `__call__(batch)` returns a module's batch, and each
    of its rows is a separate item. `__init__` then gets `config` (a `TrainingConfig`), `spaces`, `module_spec` and
    RLlib's other arguments, and only `__call__` runs the training's connectors.

    Args:
        dataset: the dataset that units belong to.
        columns: names of the columns to read; None reads all.
        connectors: connectors of scope `step` or `episode`, in order.
        seed: the run's seed, for the connectors' randomness.
        validate: check shapes, bounds and NaN in epoch 0.
        observation_space: the environment's, for the checks.
        action_space: the environment's, for the checks.
        normalized_actions: whether Box actions are recorded as the module returns them, before scaling and clipping, so
            that they may exceed the space's bounds.
        config: in RLlib's form, the training's options; all arguments above are then left out.
        spaces: in RLlib's form, the spaces of observations and actions.
        rllib_kwargs: RLlib's other arguments, which are not used.

    Attributes:
        stochastic: whether the result differs between epochs; a subclass that draws random numbers sets it.
        read_seconds: time spent reading so far, in this process.
        prelearn_seconds: time spent on everything else.
    """

    stochastic: bool = False

    def __init__(
        self,
        dataset: Dataset | None = None,
        *,
        columns: Collection[str] | None = None,
        connectors: Sequence[BlockConnector] = (),
        seed: int = 0,
        validate: bool = True,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        normalized_actions: bool = False,
        config: TrainingConfig | None = None,
        spaces: tuple[gym.Space | None, gym.Space | None] | None = None,
        **rllib_kwargs: Any,
    ) -> None:
        if config is not None:
            self.config = config
            space_pair = spaces or (config.observation_space, config.action_space)
            self.observation_space, self.action_space = space_pair
            self._learner_connector = config.build_learner_connector(*space_pair)
            return
        if rllib_kwargs or dataset is None:
            raise TypeError(
                f"unexpected arguments {', '.join(map(repr, rllib_kwargs))}" if rllib_kwargs else "no dataset"
            )
        self.dataset = dataset
        self.observation_space = observation_space
        self.action_space = action_space
        self.read_seconds = 0.0
        self.prelearn_seconds = 0.0
        self._columns = columns
        self._connectors = connectors
        self._seed = seed
        self._validate = validate
        self._normalized_actions = normalized_actions
        self._checked_steps: set[Hashable] = set()

    @cached_property
    def _module(self) -> MultiRLModule:
        """The policy's network, in RLlib's form."""
        return self.config.rl_module_spec.build()

    def _map_rows_to_batch(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Convert rows to a module's batch (`default_policy/obs` …) by episodes and connectors, in RLlib's form."""
        if self.config.input_read_episodes:
            episodes = items_to_episodes(rows)
        elif self.config.input_read_sample_batches:
            episodes = call_mapper(self._map_sample_batch_to_episode, rows, self.config)["episodes"]
        else:
            episodes = call_mapper(self._map_to_episodes, rows, self.config)["episodes"]
        for episode in episodes:
            episode.to_numpy()
        batch = self._learner_connector(rl_module=self._module, batch={}, episodes=episodes, shared_data={})
        return {f"{DEFAULT_MODULE_ID}/{name}": value for name, value in batch[DEFAULT_MODULE_ID].items()}

    def __call__(self, unit: Any, epoch: int = 0) -> Any:
        """Return the block of a unit in an epoch; in RLlib's form, a module's batch of rows.

        Raises:
            DataError: the unit cannot be read, or is not valid.
            UserCodeError: a connector raised, changed the number of episodes or their lengths, or returned two
                different results for the first unit.
        """
        if isinstance(unit, Mapping):
            return self._map_rows_to_batch(unit)
        start_time = time.perf_counter()
        stored_block = self._read_unit(unit)
        read_time = time.perf_counter()
        block = self._map_block(stored_block)
        if self._validate and epoch == 0:
            self._check_block(block, unit)
        metrics = MetricsLogger()
        for index, connector in enumerate(self._connectors):
            context = Context(self._seed, index, epoch, unit.id, connector.stochastic, metrics)
            block = self._run_connector(block, connector, context)
        if self._validate and epoch == 0:
            self._check_learnable(block, unit)
        if logged_metrics := metrics.drain():
            # Metrics travel with the block, since this may run on a data worker.
            block = replace(block, logged_metrics=logged_metrics)
        self.read_seconds += read_time - start_time
        self.prelearn_seconds += time.perf_counter() - read_time
        return block

    def _read_unit(self, unit: Unit) -> Block:
        """Read the unit as stored."""
        has_default_call = type(self).__call__ is OfflinePreLearner.__call__
        # Other threads of the data worker may pre-learn while this one reads, but not in the middle of user code.
        with release_turn() if has_default_call else nullcontext():
            return self.dataset.read(unit, self._columns)

    @classmethod
    def map_rows(cls, rows: dict[str, NDArray], **kwargs: Any) -> Any:  # noqa: ARG003
        """Hook: map the rows of text, image or binary files to complete episodes, once, before training.

        Args:
            rows: one array per column, `[R, …]`. `path` is the file of each row, as `str`. The format "Text" has the
                lines of one file as `text`; "Images" the images of one folder as `image`, `[R, height, width, …]` uint8
                (an object array if they differ in shape); "Binary" the files of one folder as `bytes`.
            **kwargs: `spec.pipeline.preLearnerKwargs`.

        Returns:
            A `Block`, a list of `SingleAgentEpisode`, or RLlib's `{"episodes": [...]}`. No two episodes
            share an id.

        Raises:
            SpecError: a subclass neither overrides this nor is in RLlib's form.
        """
        raise SpecError(f"{cls.__name__} does not override map_rows, which turns rows of files into episodes")

    @classmethod
    def make_episodes(
        cls, rows: dict[str, NDArray], kwargs: Mapping[str, Any], training: Mapping[str, Any], location: str
    ) -> Block | None:
        """Return the episodes that the class makes of rows, in RLlib's form or by `map_rows`; None if there are none.

        See `prelearn_rows` for the arguments.

        Raises:
            UserCodeError: it raised, did not return episodes that fit the spaces, or returned two different results
                for the first rows.
        """
        config, is_rllib_form = TrainingConfig(training), is_in_rllib_form(cls)
        name = mapper_name(cls, config) if is_rllib_form else "map_rows"

        def make_block() -> Block | None:
            read_only_rows = as_read_only(rows)
            if is_rllib_form:
                return _to_block_or_none(prelearn_rows(cls, read_only_rows, kwargs, training, location))
            return _to_block_or_none(cls.map_rows(read_only_rows, **kwargs))

        with calling(f"{cls.__name__}.{name}, given {location},", getattr(cls, name)):
            return _make_checked(cls, make_block, config)

    def _map_to_episodes(self, *args: Any, **kwargs: Any) -> Any:
        """Hook: map stored data to episodes.

        Args:
            args: a block as read; or, in RLlib's form, rows of timesteps.
            kwargs: in RLlib's form `batch` and others.

        Returns:
            A `Block`, a list of `SingleAgentEpisode`, or RLlib's `{"episodes": [...]}`.
        """
        if args and isinstance(args[0], Block):
            return args[0]
        schema = kwargs.get("schema") or getattr(getattr(self, "config", None), "input_read_schema", None)
        return {"episodes": rows_to_episodes(_find_rows(args, kwargs), schema)}

    def _map_sample_batch_to_episode(self, *args: Any, **kwargs: Any) -> Any:
        """Hook, in RLlib's form: map SampleBatch rows, a fragment of an episode each, to `{"episodes": [...]}`."""
        return {"episodes": sample_batches_to_episodes(_find_rows(args, kwargs))}

    def _map_block(self, block: Block) -> Block:
        has_default_mapper = type(self)._map_to_episodes is OfflinePreLearner._map_to_episodes
        # A mapper of rows ran when the data were prepared.
        if has_default_mapper or has_rllib_mapper(type(self)):
            return block
        with calling(f"{type(self).__name__}._map_to_episodes", self._map_to_episodes):
            return self._run_checked(lambda: _to_block(self._map_to_episodes(block)), block.length, "mapping")

    def _check_block(self, block: Block, unit: Unit) -> None:
        check_block(
            block,
            self.dataset.spec,
            self.observation_space,
            self.action_space,
            partial(self.dataset.locate, unit),
            normalized_actions=self._normalized_actions,
        )

    def _check_learnable(self, block: Block, unit: Unit) -> None:
        """Check that algorithms can learn from the columns; check results of custom connectors like recorded data."""
        spec, locate = DataSpec.from_block(block), partial(self.dataset.locate, unit)
        first_location = str(locate(0))
        custom_names = [connector.name for connector in self._connectors if is_user_code(connector.function)]
        try:
            check_numbers(spec, first_location)
            if custom_names:
                check_spec(spec, None, self.action_space, first_location)
                check_block(block, spec, None, self.action_space, locate, normalized_actions=True)
        except DataError as error:
            if not custom_names:
                raise
            raise UserCodeError(f"after the connectors {', '.join(custom_names)}: {error}") from error

    def _run_connector(self, block: Block, connector: BlockConnector, context: Context) -> Block:
        loggers = iter((context.metrics, MetricsLogger()))  # metrics of the second call are dropped

        def run() -> Block:
            result = connector(block, replace(context, metrics=next(loggers)))
            check_observations(result, block)
            return result

        with calling(f"connector {connector.name}", connector.function):
            return self._run_checked(run, block.length, context.connector_index)

    def _run_checked(
        self, make: Callable[[], Block], lengths: NDArray[np.int64], step_key: Hashable
    ) -> Block:
        """Run a custom step on a unit; on the first unit run it twice and compare the results."""
        block = make()
        check_episodes(block, lengths)
        if step_key not in self._checked_steps:
            self._checked_steps.add(step_key)
            check_repeatable(block.columns, make().columns)
        return block


def guard_prelearner(prelearner: OfflinePreLearner) -> PreLearn:
    """Return the pre-learner, wrapped to raise readable errors if a subclass overrides `__call__`."""
    if type(prelearner).__call__ is OfflinePreLearner.__call__:
        return prelearner
    return partial(_call_guarded, prelearner)


def _call_guarded(prelearner: OfflinePreLearner, unit: Unit, epoch: int) -> Block:
    with calling(f"pre-learner {type(prelearner).__name__}", prelearner.__call__):
        return prelearner._run_checked(lambda: prelearner(unit, epoch), unit.lengths, "call")


_checked_classes: set[type] = set()
"""Pre-learners that this process has called twice with the same rows."""


def _make_checked(
    cls: type[OfflinePreLearner], make: Callable[[], Block | None], config: TrainingConfig
) -> Block | None:
    """Return the checked result of `make`; for the first rows call it twice and compare the results."""
    first_block = make()
    if first_block is None:
        return None
    check_mapped_episodes(first_block, None if has_rllib_call(cls) else config.observation_space)
    if cls not in _checked_classes:
        _checked_classes.add(cls)
        second_block = make()
        if second_block is None or not np.array_equal(first_block.length, second_block.length):
            raise Misuse(
                f"returned two different lists of episodes for the same data: {REPEATABILITY_RULES.format('')}."
            )
        check_repeatable(first_block.columns, second_block.columns)
    return first_block


def _to_block_or_none(episodes: Any) -> Block | None:
    """Convert the episodes that a hook returned to a block; return None if there are none."""
    episodes = episodes["episodes"] if isinstance(episodes, Mapping) and "episodes" in episodes else episodes
    if isinstance(episodes, Block):
        return episodes if episodes.num_episodes else None
    if not isinstance(episodes, list | tuple):
        raise Misuse(f"returned a {type(episodes).__name__}; it must return a list of SingleAgentEpisode.")
    return episodes_to_block(episodes) if episodes else None


def _find_rows(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rows among the arguments of a hook in RLlib's form: `batch`, else the first mapping."""
    rows = kwargs.get("batch", next((argument for argument in args if isinstance(argument, Mapping)), None))
    return rows or {}


def _to_block(result: Any) -> Block:
    episodes = result["episodes"] if isinstance(result, dict) else result
    return episodes if isinstance(episodes, Block) else episodes_to_block(episodes)


def constructor_kwargs(cls: type[OfflinePreLearner], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `spec.pipeline.preLearnerKwargs` for `__init__`, without those only for mapping rows."""
    parameters = inspect.signature(cls).parameters
    has_custom_init = cls.__init__ is not OfflinePreLearner.__init__
    if has_custom_init and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(kwargs)
    mapper = cls._map_to_episodes if has_rllib_mapper(cls) else cls.map_rows
    mapper_parameters = inspect.signature(mapper).parameters
    return {
        name: value for name, value in kwargs.items() if name in parameters or name not in mapper_parameters
    }


def prelearner_class(pipeline: PipelineSpec) -> type[OfflinePreLearner]:
    """Return `OfflinePreLearner`, or the user's subclass that `spec.pipeline.preLearner` names.

    Raises:
        SpecError: the class does not exist, is not a subclass, or overrides a method that is never called.
        UserCodeError: importing it raised.
    """
    if pipeline.pre_learner is None:
        return OfflinePreLearner
    cls = import_subclass(pipeline.pre_learner, OfflinePreLearner, "spec.pipeline.preLearner")
    refuse_unused_overrides(cls, OfflinePreLearner, _UNSUPPORTED_OVERRIDES)
    return cls


def unit_prelearner_class(pipeline: PipelineSpec) -> type[OfflinePreLearner]:
    """Return the pre-learner for units; a class that maps rows ran when the data were prepared.

    Raises:
        SpecError: see `prelearner_class`.
        UserCodeError: importing it raised.
    """
    cls = prelearner_class(pipeline)
    takes_config = "config" in inspect.signature(cls.__init__).parameters
    has_custom_init = cls.__init__ is not OfflinePreLearner.__init__
    return OfflinePreLearner if has_rllib_call(cls) or (has_custom_init and takes_config) else cls
