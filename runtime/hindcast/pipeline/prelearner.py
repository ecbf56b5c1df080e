"""`OfflinePreLearner`: a unit of a dataset to the block from which batches are cut. Runs on data workers."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.units import Unit
from hindcast.datasets.validate import check_block
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.episodes.convert import episodes_to_block
from hindcast.errors import SpecError
from hindcast.pipeline.connectors import BlockConnector, Context
from hindcast.pipeline.contracts import check_again, check_episodes
from hindcast.pipeline.executors import PreLearn
from hindcast.user_code import calling, import_subclass, refuse_uncalled

SCHEMA: Final = {
    column: column
    for column in (
        Columns.EPS_ID,
        Columns.AGENT_ID,
        Columns.MODULE_ID,
        Columns.OBS,
        Columns.ACTIONS,
        Columns.REWARDS,
        Columns.INFOS,
        Columns.NEXT_OBS,
        Columns.TERMINATEDS,
        Columns.TRUNCATEDS,
        Columns.T,
    )
}
"""RLlib's: from a column to its name in the data, for pre-learners that are written in its form."""

_NO_BUFFER: Final = "timesteps are shuffled in windows (pipeline.windowSteps), not drawn from a buffer"
_UNCALLED: Final = {
    "_map_sample_batch_to_episode": "SampleBatch data become episodes before they reach a pre-learner; override "
    "_map_to_episodes(self, block), which gets those",
    "_validate_episodes": "override _map_to_episodes(self, block), and raise there",
    "_postprocess_and_sample": "override _map_to_episodes(self, block), or sample in a subclass of OfflineData",
    "_should_module_be_updated": "there is one module, and it is trained",
    "build_learner_connector": "name the connectors in pipeline.connectors (learner_connector in Python)",
    "default_prelearner_buffer_class": _NO_BUFFER,
    "default_prelearner_buffer_kwargs": _NO_BUFFER,
}
"""RLlib's methods of a pre-learner that have no place here, and what to do instead of overriding them."""


class OfflinePreLearner:
    """Read, map to episodes, validate, run the connectors.

    To customise more than a connector can, subclass it and name the class in `spec.pipeline.preLearner`:
    override `_map_to_episodes`, or `__call__`, and take options of your own in `__init__`, passing the others
    on (`spec.pipeline.preLearnerKwargs`). Whatever these do, the episodes keep their number and lengths: the
    order of batches is made from those that the dataset says. What makes episodes of files that hold no
    timesteps (text, images, binary) is `map_rows`.

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

    Attributes:
        stochastic: its result differs between epochs; a subclass that draws random numbers sets it.
        read_seconds: time spent reading so far, in this process.
        prelearn_seconds: time spent on all the rest.
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
    ) -> None:
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

    def __call__(self, unit: Unit, epoch: int = 0) -> Block:
        """The unit as batches shall see it in that epoch.

        Raises:
            DataError: it cannot be read, or is not valid.
            UserCodeError: a connector raised, changed the episodes' number or lengths, or made of the first unit
                something else when it was called again.
        """
        started = time.perf_counter()
        read = self.dataset.read(unit, self._columns)
        read_at = time.perf_counter()
        block = self._mapped(read)
        if self._validate and epoch == 0:
            self._check(block, unit)
        for position, connector in enumerate(self._connectors):
            context = Context(self._seed, position, epoch, unit.id, connector.stochastic)
            block = self._connected(block, connector, context)
        self.read_seconds += read_at - started
        self.prelearn_seconds += time.perf_counter() - read_at
        return block

    @classmethod
    def map_rows(cls, rows: dict[str, NDArray], **kwargs: Any) -> Any:
        """Hook: the rows of text, images or binary files as whole episodes, once, before training.

        Args:
            rows: one array for each column, `[R, …]`, R rows. Always `path`, the file, as `str`. With the format
                "Text" the lines of one file, `text`; "Images" those of one folder, `image`, `[R, height, width, …]`
                uint8 (an object array where they differ in shape); "Binary" those of one folder, `bytes`.
            **kwargs: `spec.pipeline.preLearnerKwargs`.

        Returns:
            A `Block`, a list of `SingleAgentEpisode`, or RLlib's `{"episodes": [...]}`. No two episodes
            share an id.

        Raises:
            NotImplementedError: a subclass neither overrides this nor has `_map_to_episodes` in RLlib's
                form, a static method of `batch`, which is called with the rows.
        """
        if not cls.maps_batches():
            raise NotImplementedError(
                f"override map_rows in {cls.__name__}: it says what episodes files hold"
            )
        return cls._map_to_episodes(  # type: ignore[call-arg]
            is_multi_agent=False,
            batch=rows,
            schema=SCHEMA,
            to_numpy=True,
            input_compress_columns=None,
            observation_space=None,
            action_space=None,
            **kwargs,
        )

    @classmethod
    def maps_batches(cls) -> bool:
        """Whether `_map_to_episodes` is in RLlib's form, which maps rows of files and not blocks."""
        return isinstance(inspect.getattr_static(cls, "_map_to_episodes"), staticmethod)

    def _map_to_episodes(self, block: Block) -> Any:
        """Hook: what storage holds as episodes.

        Args:
            block: as read.

        Returns:
            A `Block`, a list of `SingleAgentEpisode`, or RLlib's `{"episodes": [...]}`.
        """
        return block

    @staticmethod
    def _map_sample_batch_to_episode(*_: Any, **__: Any) -> Any:
        """Refused: SampleBatch data need no such step.

        Raises:
            SpecError: always.
        """
        raise SpecError(
            "_map_sample_batch_to_episode is not available: SampleBatch data are read as they are, by "
            "input_read_sample_batches=True or format: SampleBatch; `hindcast convert FOLDER EPISODES` makes episodes "
            "of them."
        )

    def _mapped(self, block: Block) -> Block:
        is_own = type(self)._map_to_episodes is OfflinePreLearner._map_to_episodes
        if is_own or self.maps_batches():  # batches of files were mapped when the data were prepared
            return block
        with calling(f"{type(self).__name__}._map_to_episodes", self._map_to_episodes):
            return self._checked(lambda: _as_block(self._map_to_episodes(block)), block.length, "mapping")

    def _check(self, block: Block, unit: Unit) -> None:
        def where(episode: int) -> tuple[str, int]:
            return self.dataset.locate(unit, episode)

        check_block(
            block,
            self.dataset.spec,
            self.observation_space,
            self.action_space,
            where,
            normalized_actions=self._normalized_actions,
        )

    def _connected(self, block: Block, connector: BlockConnector, context: Context) -> Block:
        with calling(f"connector {connector.name}", connector.function):
            return self._checked(lambda: connector(block, replace(context)), block.length, context.connector)

    def _checked(self, make: Callable[[], Block], lengths: NDArray[np.int64], step: Hashable) -> Block:
        """What a step of the user's makes of a unit; of the first one it makes it twice."""
        new = make()
        check_episodes(new, lengths)
        if step not in self._tried:
            self._tried.add(step)
            check_again(new.columns, make().columns)
        return new


def guarded(prelearner: OfflinePreLearner) -> PreLearn:
    """The pre-learner, or, where a subclass overrides `__call__`, one that makes its mistakes sentences."""
    if type(prelearner).__call__ is OfflinePreLearner.__call__:
        return prelearner
    return partial(_call_guarded, prelearner)


def _call_guarded(prelearner: OfflinePreLearner, unit: Unit, epoch: int) -> Block:
    with calling(f"pre-learner {type(prelearner).__name__}", prelearner.__call__):
        return prelearner._checked(lambda: prelearner(unit, epoch), unit.lengths, "call")


def _as_block(mapped: Any) -> Block:
    episodes = mapped["episodes"] if isinstance(mapped, dict) else mapped
    return episodes if isinstance(episodes, Block) else episodes_to_block(episodes)


def constructor_kwargs(kind: type[OfflinePreLearner], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `spec.pipeline.preLearnerKwargs` that are for `__init__`, and not for mapping rows alone."""
    taken = inspect.signature(kind).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return dict(kwargs)
    mapping = kind._map_to_episodes if kind.maps_batches() else kind.map_rows
    mapped = inspect.signature(mapping).parameters
    return {name: value for name, value in kwargs.items() if name in taken or name not in mapped}


def prelearner_class(pipeline: PipelineSpec) -> type[OfflinePreLearner]:
    """`OfflinePreLearner`, or the user's subclass that `spec.pipeline.preLearner` names.

    Raises:
        SpecError: there is no such class, it is no subclass, or it overrides what nothing calls.
        UserCodeError: importing it raised.
    """
    if pipeline.pre_learner is None:
        return OfflinePreLearner
    found = import_subclass(pipeline.pre_learner, OfflinePreLearner, "spec.pipeline.preLearner")
    refuse_uncalled(found, OfflinePreLearner, _UNCALLED)
    return found
