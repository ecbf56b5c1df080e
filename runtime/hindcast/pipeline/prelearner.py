"""`OfflinePreLearner` turns a unit of a dataset into the block that batches are cut from. It runs on data workers."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.units import EpisodeLocation, Unit
from hindcast.datasets.validate import check_block, check_scalar_columns, check_spec
from hindcast.episodes.block import Block
from hindcast.episodes.convert import episodes_to_block
from hindcast.episodes.spaces import space_from_json
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.formats.spec import DataSpec
from hindcast.formatting import describe_type
from hindcast.metrics_logger import MetricsLogger
from hindcast.pipeline.connectors import BlockConnector, Context
from hindcast.pipeline.contracts import check_episodes, check_mapped_episodes, check_observations
from hindcast.pipeline.executors import PreLearn
from hindcast.pipeline.rng import seeded_generators
from hindcast.pipeline.turn_lock import release_turn
from hindcast.user_code import Misuse, calling, import_subclass, is_user_code, refuse_unused_overrides

_thread_state: Final = threading.local()


class OfflinePreLearner:
    """A callable that reads a unit, maps it to episodes, validates them and runs the connectors.

    To customise more than a connector can, subclass it and name the class in `spec.pipeline.preLearner`: override
    `_map_to_episodes` or `__call__`; `__init__` may take options (`spec.pipeline.preLearnerKwargs`) and must pass all
    other arguments to `super().__init__`. The number of episodes and their lengths must not change, since they
    determine the order of batches. For files that contain no timesteps (text, images, binary), override `map_rows`,
    which makes episodes of them.

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
        fillable: elements of observations that may be missing, see `check_block`.

    Attributes:
        stochastic: whether the result differs between epochs; a subclass that draws random numbers sets it.
    """

    stochastic: bool = False

    def __init__(
        self,
        dataset: Dataset,
        *,
        columns: Collection[str] | None = None,
        connectors: Sequence[BlockConnector] = (),
        seed: int = 0,
        validate: bool = True,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        normalized_actions: bool = False,
        fillable: Mapping[str, NDArray[np.bool_]] = MappingProxyType({}),
    ) -> None:
        self.dataset = dataset
        self.observation_space = observation_space
        self.action_space = action_space
        self._columns = columns
        self._connectors = connectors
        self._seed = seed
        self._validate = validate
        self._normalized_actions = normalized_actions
        self._fillable = dict(fillable)

    def __call__(self, unit: Unit, epoch: int = 0) -> Block:
        """Return the block of a unit in an epoch.

        Raises:
            DataError: the unit cannot be read, or is not valid.
            UserCodeError: a connector or `_map_to_episodes` raised, or changed the number of episodes or their lengths.
        """
        block = self._map_block(self._read_unit(unit), unit)
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
        return block

    def _read_unit(self, unit: Unit) -> Block:
        """Read the unit as stored."""
        # The turn is released while this thread reads, so that others pre-learn. A user's `__call__` keeps its turn: it
        # need not be thread-safe.
        with nullcontext() if is_user_code(type(self).__call__) else release_turn():
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
            A `Block`, a list of `SingleAgentEpisode`, or `{"episodes": either}`. No two episodes share an id.

        Raises:
            SpecError: a subclass does not override this.
        """
        raise SpecError(f"{cls.__name__} does not override map_rows, which turns rows of files into episodes")

    def _map_to_episodes(self, block: Block) -> Any:
        """Hook: map the episodes of a unit.

        Args:
            block: the episodes as read.

        Returns:
            A `Block`, a list of `SingleAgentEpisode`, or `{"episodes": either}`.
        """
        return block

    @classmethod
    def maps_any_rows(cls) -> bool:
        """Return True if the class turns rows of files of any format into episodes, before training."""
        return False

    @classmethod
    def runs_connectors(cls) -> bool:
        """Return True if the class runs the training's connectors when it turns rows into episodes."""
        return False

    @classmethod
    def unit_class(cls) -> type[OfflinePreLearner]:
        """Return the class that pre-learns units: this one, or the default if this one only maps rows."""
        return cls

    @classmethod
    def kwargs_receivers(cls) -> tuple[Callable[..., Any], ...]:
        """Return the methods that may have parameters for entries of `spec.pipeline.preLearnerKwargs`."""
        return cls.__init__, cls.map_rows

    @classmethod
    def make_episodes(
        cls,
        rows: dict[str, NDArray] | Block,
        kwargs: Mapping[str, Any],
        training: Mapping[str, Any],
        location: str,
    ) -> Block | None:
        """Return the episodes that the class makes of rows; None if there are none.

        Args:
            rows: `[R, …]` by column; or complete episodes, which only classes get for which `maps_any_rows()` is True.
            kwargs: `spec.pipeline.preLearnerKwargs`.
            training: options of the training, as JSON; for `map_rows` only its `observationSpace` is used.
            location: source of the rows, for messages.

        Raises:
            UserCodeError: the class's code raised, or did not return episodes that fit the observation space.
        """
        space = training.get("observationSpace")
        assert not isinstance(rows, Block)
        with (
            calling(f"{cls.__name__}.map_rows, given {location},", cls.map_rows),
            seeded_generators(int(training.get("seed") or 0), "pre-learner", location),
        ):
            return make_checked_block(
                cls.map_rows(rows, **kwargs), None if space is None else space_from_json(space)
            )

    @classmethod
    def _maps_blocks(cls) -> bool:
        """Return True if the class changes the episodes of units."""
        return is_user_code(cls._map_to_episodes)

    def _map_block(self, block: Block, unit: Unit) -> Block:
        if not self._maps_blocks():
            return block
        with (
            calling(f"{type(self).__name__}._map_to_episodes", self._map_to_episodes),
            seeded_generators(self._seed, "mapping", unit.id),
        ):
            mapped_block = _to_block(self._map_to_episodes(block))
            check_episodes(mapped_block, block.length)
        return mapped_block

    def _check_block(self, block: Block, unit: Unit) -> None:
        check_block(
            block,
            self.dataset.spec,
            self.observation_space,
            self.action_space,
            partial(self.dataset.locate, unit),
            normalized_actions=self._normalized_actions,
            fillable=self._fillable,
        )

    def _check_learnable(self, block: Block, unit: Unit) -> None:
        """Check that algorithms can learn from the columns; check results of custom connectors like recorded data."""
        spec, locate = DataSpec.from_block(block), partial(self.dataset.locate, unit)
        first_location = locate(0)
        custom_names = [connector.name for connector in self._connectors if is_user_code(connector.function)]
        try:
            check_scalar_columns(spec, *first_location)
            if custom_names:
                check_spec(spec, None, self.action_space, *first_location)
                check_block(
                    block,
                    spec,
                    None,
                    self.action_space,
                    locate,
                    normalized_actions=True,
                    fillable=self._fillable,
                )
        except DataError as error:
            if not custom_names:
                raise
            raise UserCodeError(f"after the connectors {', '.join(custom_names)}: {error}") from error

    def _run_connector(self, block: Block, connector: BlockConnector, context: Context) -> Block:
        # A connector that is not stochastic must not differ between epochs: resident data are read once.
        epoch = context.epoch if connector.stochastic else 0
        path = (context.connector_index, epoch, context.position)
        with (
            calling(f"connector {connector.name}", connector.function),
            seeded_generators(self._seed, "connector", *path),
        ):
            result = connector(block, context)
            check_observations(result, block)
            check_episodes(result, block.length)
        return result


class ExtractedDataset(Dataset):
    """A dataset without its index, for data workers: they receive the part of the index that each unit needs.

    Args:
        dataset: the dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.spec, self.digest, self.notes, self.units = dataset.spec, dataset.digest, dataset.notes, ()
        self.num_episodes, self.num_steps, self.nbytes = (
            dataset.num_episodes,
            dataset.num_steps,
            dataset.nbytes,
        )

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        return self.extract(unit).read(unit, columns)

    def locate(self, unit: Unit, episode: int) -> EpisodeLocation:
        return self.extract(unit).locate(unit, episode)

    def extract(self, unit: Unit) -> Dataset:  # noqa: ARG002
        """Return the part that this thread reads, see `set_extracted`."""
        part: Dataset = _thread_state.part
        return part


def set_extracted(part: Dataset | None) -> None:
    """Set the result of `Dataset.extract` for the unit that this thread reads next."""
    _thread_state.part = part


def detach_dataset(prelearn: PreLearn) -> tuple[PreLearn, Dataset | None]:
    """Return a pre-learner without the index of its dataset, which may be large, for data workers; and the dataset.

    A pre-learner without a dataset is returned unchanged, with None.
    """
    prelearner = prelearn.args[0] if isinstance(prelearn, partial) else prelearn
    if not isinstance(prelearner, OfflinePreLearner) or not isinstance(prelearner.dataset, Dataset):
        return prelearn, None
    detached = copy.copy(prelearner)
    detached.dataset = ExtractedDataset(prelearner.dataset)
    return guard_prelearner(detached), prelearner.dataset


def guard_prelearner(prelearner: OfflinePreLearner) -> PreLearn:
    """Return the pre-learner; if a subclass overrides `__call__`, with checks of its results and readable errors."""
    if not is_user_code(type(prelearner).__call__):
        return prelearner
    return partial(_call_guarded, prelearner)


def _call_guarded(prelearner: OfflinePreLearner, unit: Unit, epoch: int) -> Block:
    with (
        calling(f"pre-learner {type(prelearner).__name__}", prelearner.__call__),
        seeded_generators(prelearner._seed, "call", unit.id, epoch if prelearner.stochastic else 0),
    ):
        block = prelearner(unit, epoch)
        check_episodes(block, unit.lengths)
    return block


def make_checked_block(episodes: Any, observation_space: gym.Space | None) -> Block | None:
    """Return the episodes that custom code made of rows as a checked block, or None if there are none.

    Args:
        episodes: a `Block`, a list of `SingleAgentEpisode`, or `{"episodes": either}`.
        observation_space: space that observations must fit; None does not check them.

    Raises:
        Misuse: `episodes` are something else, or do not fit the space.
    """
    block = _to_block_or_none(episodes)
    if block is not None:
        check_mapped_episodes(block, observation_space)
    return block


def _to_block_or_none(episodes: Any) -> Block | None:
    """Convert the episodes that a hook returned to a block; return None if there are none."""
    episodes = unpack_episodes(episodes)
    if isinstance(episodes, Block):
        return episodes if episodes.num_episodes else None
    return episodes_to_block(episodes) if episodes else None


def unpack_episodes(output: Any) -> Block | list[Any] | tuple[Any, ...]:
    """Return the episodes among what a hook returned: a `Block`, a list of episodes, or `{"episodes": either}`.

    Raises:
        Misuse: it returned something else.
    """
    episodes = output["episodes"] if isinstance(output, Mapping) and "episodes" in output else output
    if isinstance(episodes, Block):
        return episodes
    description = describe_type(episodes)
    if isinstance(episodes, list | tuple):
        others = [item for item in episodes if not hasattr(item, "get_observations")]
        if not others:
            return episodes
        description += f" with values of type {type(others[0]).__name__}"
    raise Misuse(f"returned {description}; it must return a Block or a list of SingleAgentEpisode.")


def _to_block(result: Any) -> Block:
    episodes = result["episodes"] if isinstance(result, dict) else result
    return episodes if isinstance(episodes, Block) else episodes_to_block(episodes)


def constructor_kwargs(cls: type[OfflinePreLearner], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `spec.pipeline.preLearnerKwargs` for `__init__`, without those only for the row mapper.

    A custom `__init__` with `**kwargs` receives all entries. `prelearner_class` refuses those that no method has.
    """
    parameters = inspect.signature(cls).parameters
    has_var_kwargs = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if has_var_kwargs and is_user_code(cls.__init__):
        return dict(kwargs)
    return {name: value for name, value in kwargs.items() if name in parameters}


def maps_any_rows(pipeline: PipelineSpec) -> bool:
    """Return True if the pre-learner turns rows of files of any format into episodes, before training.

    Raises:
        SpecError: see `prelearner_class`.
        UserCodeError: importing the class raised.
    """
    return pipeline.pre_learner_buffer is not None or prelearner_class(pipeline).maps_any_rows()


def prelearner_path(pipeline: PipelineSpec) -> str | None:
    """Return the import path of the pre-learner's class; None for the default."""
    # A buffer belongs to RLlib's form, which this package does not import.
    buffered = None if pipeline.pre_learner_buffer is None else "hindcast:OfflinePreLearner"
    return pipeline.pre_learner or buffered


def prelearner_class(pipeline: PipelineSpec) -> type[OfflinePreLearner]:
    """Return `OfflinePreLearner`, or the user's subclass that `spec.pipeline.preLearner` names.

    Raises:
        SpecError: the class does not exist, is not a subclass, or overrides a method that is never called.
        UserCodeError: importing it raised.
    """
    path = prelearner_path(pipeline)
    if path is None:
        return OfflinePreLearner
    cls = import_subclass(path, OfflinePreLearner, "spec.pipeline.preLearner")
    refuse_unused_overrides(cls)
    _check_kwargs(cls, pipeline.pre_learner_kwargs)
    return cls


def _check_kwargs(cls: type[OfflinePreLearner], kwargs: Mapping[str, Any]) -> None:
    """Check that a method of the class has a parameter for each keyword argument.

    Raises:
        SpecError: none has one.
    """
    parameters = [
        parameter
        for function in cls.kwargs_receivers()
        if is_user_code(function)
        for parameter in inspect.signature(function).parameters.values()
    ]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = {parameter.name for parameter in parameters}
    if unknown := [name for name in kwargs if name not in names]:
        raise SpecError(
            f"has {unknown[0]!r}, but no method of {cls.__name__} has a parameter of this name: add it to __init__, or "
            "leave it out",
            field="spec.pipeline.preLearnerKwargs",
        )
