"""`OfflinePreLearner`: a unit of a dataset to the block from which batches are cut. Runs on data workers."""

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
_UNCALLED: Final = {
    "_validate_episodes": "override _map_to_episodes(self, block), and raise there",
    "_postprocess_and_sample": "override _map_to_episodes(self, block), or sample in a subclass of OfflineData",
    "_should_module_be_updated": "there is one module, and it is trained",
    "build_learner_connector": "it is a config's: AlgorithmConfig.build_learner_connector",
    "default_prelearner_buffer_class": _NO_BUFFER,
    "default_prelearner_buffer_kwargs": _NO_BUFFER,
}
"""RLlib's methods of a pre-learner that have no place here, and what to do instead of overriding them."""


class OfflinePreLearner:
    """Read, map to episodes, validate, run the connectors.

    To customise more than a connector can, subclass it and name the class in `spec.pipeline.preLearner`:
    override `_map_to_episodes`, or `__call__`, and take your own options in `__init__`, passing the others
    on (`spec.pipeline.preLearnerKwargs`). Whatever these do, the episodes keep their number and lengths: the
    order of batches is made from those that the dataset says. What makes episodes of files that hold no
    timesteps (text, images, binary) is `map_rows`.

    In RLlib's form it works on rows of files, once, before training: `_map_to_episodes(batch, ...)`, static or not, and
    `_map_sample_batch_to_episode(batch, ...)` make episodes of them; `__call__(batch)` makes a module's batch, each row
    of which is learnt from by itself. `__init__` is then given `config` (a `TrainingConfig`), `spaces`, `module_spec`
    and RLlib's other arguments, and what connectors the training has is called by `__call__` alone.

    Args:
        dataset: where units are read.
        columns: columns to read; None reads all.
        connectors: of scope `step` or `episode`, in order.
        seed: the run's, for the connectors' randomness.
        validate: check shapes, bounds and for NaN, in epoch 0.
        observation_space: the environment's, for the checks.
        action_space: the environment's, for the checks.
        normalized_actions: Box actions are recorded as a module gives them, before scaling and clipping, so
            that the space's bounds do not hold for them.
        config: of the training, in RLlib's form; then all before it is left out.
        spaces: of observations and actions, in RLlib's form.
        rllibs: other arguments in RLlib's form.

    Attributes:
        stochastic: its result differs between epochs; a subclass that draws random numbers sets it.
        read_seconds: time spent reading so far, in this process.
        prelearn_seconds: time spent on all the rest.
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
        **rllibs: Any,
    ) -> None:
        if config is not None:
            self.config = config
            given = spaces or (config.observation_space, config.action_space)
            self.observation_space, self.action_space = given
            self._learner_connector = config.build_learner_connector(*given)
            return
        if rllibs or dataset is None:
            raise TypeError(
                f"unexpected arguments {', '.join(map(repr, rllibs))}" if rllibs else "no dataset"
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
        self._tried: set[Hashable] = set()

    @cached_property
    def _module(self) -> MultiRLModule:
        """In RLlib's form: the policy's network."""
        return self.config.rl_module_spec.build()

    def _batch_of(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """In RLlib's form: rows through episodes and connectors as a module's batch, `default_policy/obs` and so on."""
        if self.config.input_read_episodes:
            episodes = items_to_episodes(rows)
        elif self.config.input_read_sample_batches:
            episodes = call_mapper(self._map_sample_batch_to_episode, rows, self.config)["episodes"]
        else:
            episodes = call_mapper(self._map_to_episodes, rows, self.config)["episodes"]
        for episode in episodes:
            episode.to_numpy()
        made = self._learner_connector(rl_module=self._module, batch={}, episodes=episodes, shared_data={})
        return {f"{DEFAULT_MODULE_ID}/{name}": value for name, value in made[DEFAULT_MODULE_ID].items()}

    def __call__(self, unit: Any, epoch: int = 0) -> Any:
        """The unit as batches shall see it in that epoch; in RLlib's form, a module's batch of rows.

        Raises:
            DataError: it cannot be read, or is not valid.
            UserCodeError: a connector raised, changed the episodes' number or lengths, or made of the first unit
                something else when it was called again.
        """
        if isinstance(unit, Mapping):
            return self._batch_of(unit)
        started = time.perf_counter()
        read = self._read_unit(unit)
        read_at = time.perf_counter()
        block = self._mapped(read)
        if self._validate and epoch == 0:
            self._check(block, unit)
        metrics = MetricsLogger()
        for position, connector in enumerate(self._connectors):
            context = Context(self._seed, position, epoch, unit.id, connector.stochastic, metrics)
            block = self._connected(block, connector, context)
        if self._validate and epoch == 0:
            self._check_learnable(block, unit)
        if logged := metrics.drain():
            block = replace(block, logged_metrics=logged)
        self.read_seconds += read_at - started
        self.prelearn_seconds += time.perf_counter() - read_at
        return block

    def _read_unit(self, unit: Unit) -> Block:
        """The unit as stored; others are pre-learned meanwhile, unless it is read in the middle of a user's call."""
        is_own = type(self).__call__ is OfflinePreLearner.__call__
        with release_turn() if is_own else nullcontext():
            return self.dataset.read(unit, self._columns)

    @classmethod
    def map_rows(cls, rows: dict[str, NDArray], **kwargs: Any) -> Any:  # noqa: ARG003
        """Hook: the rows of text, images or binary files as complete episodes, once, before training.

        Args:
            rows: one array for each column, `[R, …]`, R rows. Always `path`, the file, as `str`. With the format
                "Text" the lines of one file, `text`; "Images" those of one folder, `image`, `[R, height, width, …]`
                uint8 (an object array where they differ in shape); "Binary" those of one folder, `bytes`.
            **kwargs: `spec.pipeline.preLearnerKwargs`.

        Returns:
            A `Block`, a list of `SingleAgentEpisode`, or RLlib's `{"episodes": [...]}`. No two episodes
            share an id.

        Raises:
            SpecError: a subclass neither overrides this nor is in RLlib's form.
        """
        raise SpecError(f"override map_rows in {cls.__name__}: it says what episodes files hold")

    @classmethod
    def make_episodes(
        cls, rows: dict[str, NDArray], kwargs: Mapping[str, Any], training: Mapping[str, Any], where: str
    ) -> Block | None:
        """The episodes that the class makes of rows, in RLlib's form or by `map_rows`; None if it makes none.

        Arguments as of `made_of`.

        Raises:
            UserCodeError: it raised; it returned something else than episodes that fit the spaces; or it made of the
                first rows something else when it was called again.
        """
        config, in_their_form = TrainingConfig(training), is_in_rllib_form(cls)
        name = mapper_name(cls, config) if in_their_form else "map_rows"

        def made() -> Block | None:
            given = as_read_only(rows)
            if in_their_form:
                return _found(prelearn_rows(cls, given, kwargs, training, where))
            return _found(cls.map_rows(given, **kwargs))

        with calling(f"{cls.__name__}.{name}, given {where},", getattr(cls, name)):
            return _made_again(cls, made, config)

    def _map_to_episodes(self, *given: Any, **named: Any) -> Any:
        """Hook: what storage holds as episodes.

        Args:
            given: a block as read; or, in RLlib's form, rows of timesteps.
            named: in RLlib's form `batch` and others.

        Returns:
            A `Block`, a list of `SingleAgentEpisode`, or RLlib's `{"episodes": [...]}`.
        """
        if given and isinstance(given[0], Block):
            return given[0]
        schema = named.get("schema") or getattr(getattr(self, "config", None), "input_read_schema", None)
        return {"episodes": rows_to_episodes(_rows_in(given, named), schema)}

    def _map_sample_batch_to_episode(self, *given: Any, **named: Any) -> Any:
        """Hook, in RLlib's form: rows of SampleBatch data, a fragment of an episode each, as `{"episodes": [...]}`."""
        return {"episodes": sample_batches_to_episodes(_rows_in(given, named))}

    def _mapped(self, block: Block) -> Block:
        is_own = type(self)._map_to_episodes is OfflinePreLearner._map_to_episodes
        if is_own or has_rllib_mapper(type(self)):  # rows of files were mapped when the data were prepared
            return block
        with calling(f"{type(self).__name__}._map_to_episodes", self._map_to_episodes):
            return self._checked(lambda: _as_block(self._map_to_episodes(block)), block.length, "mapping")

    def _check(self, block: Block, unit: Unit) -> None:
        check_block(
            block,
            self.dataset.spec,
            self.observation_space,
            self.action_space,
            partial(self.dataset.locate, unit),
            normalized_actions=self._normalized_actions,
        )

    def _check_learnable(self, block: Block, unit: Unit) -> None:
        """Refuse what no algorithm can learn from; what the user's connectors made is checked as recorded data are."""
        spec, where = DataSpec.from_block(block), partial(self.dataset.locate, unit)
        first = str(where(0))
        custom = [each.name for each in self._connectors if is_user_code(each.function)]
        try:
            check_numbers(spec, first)
            if custom:
                check_spec(spec, None, self.action_space, first)
                check_block(block, spec, None, self.action_space, where, normalized_actions=True)
        except DataError as error:
            if not custom:
                raise
            raise UserCodeError(f"after the connectors {', '.join(custom)}: {error}") from error

    def _connected(self, block: Block, connector: BlockConnector, context: Context) -> Block:
        loggers = iter((context.metrics, MetricsLogger()))  # what is tried again is not logged again

        def connected() -> Block:
            new = connector(block, replace(context, metrics=next(loggers)))
            check_observations(new, block)
            return new

        with calling(f"connector {connector.name}", connector.function):
            return self._checked(connected, block.length, context.connector_index)

    def _checked(self, make: Callable[[], Block], lengths: NDArray[np.int64], step: Hashable) -> Block:
        """The result of a custom step for a unit; for the first unit it is run twice and compared."""
        new = make()
        check_episodes(new, lengths)
        if step not in self._tried:
            self._tried.add(step)
            check_repeatable(new.columns, make().columns)
        return new


def guard_prelearner(prelearner: OfflinePreLearner) -> PreLearn:
    """The pre-learner, or, where a subclass overrides `__call__`, one that makes its mistakes sentences."""
    if type(prelearner).__call__ is OfflinePreLearner.__call__:
        return prelearner
    return partial(_call_guarded, prelearner)


def _call_guarded(prelearner: OfflinePreLearner, unit: Unit, epoch: int) -> Block:
    with calling(f"pre-learner {type(prelearner).__name__}", prelearner.__call__):
        return prelearner._checked(lambda: prelearner(unit, epoch), unit.lengths, "call")


_tried: set[type] = set()
"""Pre-learners that were called twice with the same rows in this process."""


def _made_again(
    kind: type[OfflinePreLearner], make: Callable[[], Block | None], config: TrainingConfig
) -> Block | None:
    """What `make` gives: checked, and of the first rows made twice."""
    made = make()
    if made is None:
        return None
    check_mapped_episodes(made, None if has_rllib_call(kind) else config.observation_space)
    if kind not in _tried:
        _tried.add(kind)
        again = make()
        if again is None or not np.array_equal(made.length, again.length):
            raise Misuse(
                f"made two different lists of episodes of the same data: {REPEATABILITY_RULES.format('')}."
            )
        check_repeatable(made.columns, again.columns)
    return made


def _found(found: Any) -> Block | None:
    """Episodes that a hook made, as a block; None if there are none."""
    found = found["episodes"] if isinstance(found, Mapping) and "episodes" in found else found
    if isinstance(found, Block):
        return found if found.num_episodes else None
    if not isinstance(found, list | tuple):
        raise Misuse(f"returned a {type(found).__name__}; it must return a list of SingleAgentEpisode.")
    return episodes_to_block(found) if found else None


def _rows_in(given: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rows among the arguments of a hook in RLlib's form: `batch`, else the first mapping."""
    rows = named.get("batch", next((each for each in given if isinstance(each, Mapping)), None))
    return rows or {}


def _as_block(mapped: Any) -> Block:
    episodes = mapped["episodes"] if isinstance(mapped, dict) else mapped
    return episodes if isinstance(episodes, Block) else episodes_to_block(episodes)


def constructor_kwargs(kind: type[OfflinePreLearner], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `spec.pipeline.preLearnerKwargs` that are for `__init__`, and not for mapping rows alone."""
    taken = inspect.signature(kind).parameters
    is_own = kind.__init__ is not OfflinePreLearner.__init__
    if is_own and any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return dict(kwargs)
    mapping = kind._map_to_episodes if has_rllib_mapper(kind) else kind.map_rows
    mapped = inspect.signature(mapping).parameters
    return {name: value for name, value in kwargs.items() if name in taken or name not in mapped}


def prelearner_class(pipeline: PipelineSpec) -> type[OfflinePreLearner]:
    """`OfflinePreLearner`, or the user's subclass that `spec.pipeline.preLearner` names.

    Raises:
        SpecError: there is no such class, it is not a subclass, or it overrides what nothing calls.
        UserCodeError: importing it raised.
    """
    if pipeline.pre_learner is None:
        return OfflinePreLearner
    found = import_subclass(pipeline.pre_learner, OfflinePreLearner, "spec.pipeline.preLearner")
    refuse_unused_overrides(found, OfflinePreLearner, _UNCALLED)
    return found


def unit_prelearner_class(pipeline: PipelineSpec) -> type[OfflinePreLearner]:
    """The pre-learner that reads prepared data: one that works on rows was there before.

    Raises:
        SpecError: as of `prelearner_class`.
        UserCodeError: importing it raised.
    """
    found = prelearner_class(pipeline)
    takes_config = "config" in inspect.signature(found.__init__).parameters
    is_own = found.__init__ is not OfflinePreLearner.__init__
    return OfflinePreLearner if has_rllib_call(found) or (is_own and takes_config) else found
