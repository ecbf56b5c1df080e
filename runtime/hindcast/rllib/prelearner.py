"""`RLlibPreLearner`: the class that users subclass to write a pre-learner, in Hindcast's form or in RLlib's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import gymnasium as gym
from numpy.typing import NDArray

from hindcast.datasets.dataset import Dataset
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.errors import SpecError
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.pipeline.prelearner import OfflinePreLearner, make_checked_block
from hindcast.rllib.multi_rl_module import MultiRLModule
from hindcast.rllib.replay_buffer import EpisodeReplayBuffer
from hindcast.rllib.row_mapping import (
    EpisodeRows,
    accepted_arguments,
    bind_mapper_arguments,
    call_row_mapper,
    has_rllib_call,
    has_rllib_init,
    has_rllib_mapper,
    has_rllib_sampling,
    is_in_rllib_form,
    items_to_episodes,
    list_episodes,
    mapper_name,
    prelearn_rows,
    rows_to_episodes,
    sample_batches_to_episodes,
    split_block,
)
from hindcast.rllib.training_config import TrainingConfig
from hindcast.user_code import Misuse, calling, is_user_code

_BUFFER_FIELD: Final = "spec.pipeline.preLearnerBuffer.name"
_BUFFER_KWARGS_FIELD: Final = "spec.pipeline.preLearnerBuffer.kwargs"


class RLlibPreLearner(OfflinePreLearner):
    """A pre-learner. Users know this class as `hindcast.OfflinePreLearner`.

    A subclass may be in Hindcast's form, see the base class, or in RLlib's. Then it maps rows of files, once, before
    training: `_map_to_episodes(batch, ...)`, static or not, and `_map_sample_batch_to_episode(batch, ...)` return
    episodes; `__call__(batch)` returns a module's batch, of which each row is a separate item. `__init__` then gets
    `config` (a `TrainingConfig`), `spaces`, `module_spec` and RLlib's other arguments, and only `__call__` runs the
    training's connectors. A batch has the rows of complete episodes; those of recordings are decoded. The global
    generators of Python, NumPy and torch, and the spaces, are seeded for each call.

    With `spec.pipeline.preLearnerBuffer`, or if a subclass overrides `_postprocess_and_sample`, episodes are added to a
    replay buffer, and items drawn from it are trained on, `train_batch_size_per_learner` for each batch of rows.

    Args:
        dataset: see `OfflinePreLearner`; None in RLlib's form, or its config.
        arguments: in RLlib's form, the arguments of RLlib 2.40 after the config, of which only the spaces are used.
        config: in RLlib's form, the training's options.
        spaces: in RLlib's form, (observation space, action space); None takes the spaces of the config.
        kwargs: the other arguments of `OfflinePreLearner`; or RLlib's, which are ignored.
    """

    unsupported_overrides: ClassVar[Mapping[str, str]] = {
        "_should_module_be_updated": "the only module is always trained",
        "build_learner_connector": "override AlgorithmConfig.build_learner_connector",
    }
    default_prelearner_buffer_class: ClassVar[type] = EpisodeReplayBuffer
    _has_added_episodes = False

    def __init__(
        self,
        dataset: Dataset | TrainingConfig | None = None,
        *arguments: Any,
        config: TrainingConfig | None = None,
        spaces: tuple[gym.Space | None, gym.Space | None] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(dataset, TrainingConfig):
            config, dataset = dataset, None
            spaces = spaces or next((value for value in arguments if isinstance(value, tuple)), None)
        if config is None:
            if dataset is None:
                raise TypeError("a pre-learner requires a dataset or, in RLlib's form, a config")
            super().__init__(dataset, **kwargs)
            return
        self.config = config
        space_pair = spaces or (config.observation_space, config.action_space)
        self.observation_space, self.action_space = space_pair
        self._learner_connector = config.build_learner_connector(*space_pair)

    def __call__(self, unit: Any, epoch: int = 0) -> Any:
        """Return the block of a unit in an epoch; in RLlib's form, convert rows to a module's batch.

        See `OfflinePreLearner.__call__` for the errors.
        """
        return self._map_rows_to_batch(unit) if isinstance(unit, Mapping) else super().__call__(unit, epoch)

    @cached_property
    def _module(self) -> MultiRLModule:
        """The policy's network, with the weights of `TrainingConfig.rl_module_spec`."""
        return self.config.rl_module_spec.build()

    @cached_property
    def episode_buffer(self) -> Any:
        """The replay buffer, of the class `preLearnerBuffer` and with its arguments; without a class, RLlib's.

        Raises:
            SpecError: the class does not accept the arguments, or has no `add` or `sample`.
            UserCodeError: it raised another error.
        """
        buffer_class = self.config.get("prelearner_buffer_class") or self.default_prelearner_buffer_class
        kwargs = self.default_prelearner_buffer_kwargs | self.config.get("prelearner_buffer_kwargs", {})
        return _make_buffer(buffer_class, kwargs)

    @property
    def default_prelearner_buffer_kwargs(self) -> dict[str, Any]:
        """Hook, in RLlib's form: the buffer's arguments, which the options extend and replace."""
        batch_size = self.config.get("train_batch_size_per_learner", 1)
        return {"capacity": 10 * batch_size, "batch_size_B": batch_size}

    def samples_from_buffer(self) -> bool:
        """Return True if items are drawn from a replay buffer; otherwise each timestep is trained on."""
        return self.config.get("prelearner_buffer_class") is not None or has_rllib_sampling(type(self))

    def _map_rows_to_batch(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Convert rows to a module's batch (`default_policy/obs` …) by episodes and connectors."""
        is_packed = not isinstance(rows, EpisodeRows) and "item" in rows and Columns.OBS not in rows
        episodes = (
            items_to_episodes(rows) if is_packed else call_row_mapper(self, rows, self.config)["episodes"]
        )
        if self.samples_from_buffer():
            episodes = self._postprocess_and_sample(episodes)
        for episode in episodes:
            episode.to_numpy()
        batch = self._learner_connector(rl_module=self._module, batch={}, episodes=episodes, shared_data={})
        return {f"{DEFAULT_MODULE_ID}/{name}": value for name, value in batch[DEFAULT_MODULE_ID].items()}

    def _map_to_episodes(*args: Any, **kwargs: Any) -> Any:
        """Hook: map stored data to episodes. In RLlib's form it may also be called on the class.

        Args:
            args: a block as read; or, in RLlib's form, the positional arguments of RLlib 2.40 or 2.60.
            kwargs: in RLlib's form its arguments, such as `batch`, `schema` and `to_numpy`.

        Returns:
            A `Block`, a list of `SingleAgentEpisode`, or RLlib's `{"episodes": [...]}`.
        """
        block = next((argument for argument in args if isinstance(argument, Block)), None)
        if block is not None:
            return block
        arguments, config = bind_mapper_arguments(args, kwargs), _find_config(args)
        episodes = rows_to_episodes(
            arguments["batch"],
            _choose_schema(arguments, config),
            to_numpy=bool(arguments.get("to_numpy")),
            should_zero_final_obs=bool(config and config.get("ignore_final_observation")),
        )
        return {"episodes": episodes}

    def _map_sample_batch_to_episode(*args: Any, **kwargs: Any) -> Any:
        """Hook, in RLlib's form: map SampleBatch rows, a fragment of an episode each, to `{"episodes": [...]}`.

        Rows of timesteps, as of a recording, are mapped by `_map_to_episodes`.
        """
        arguments = bind_mapper_arguments(args, kwargs)
        rows, schema = arguments["batch"], _choose_schema(arguments, _find_config(args))
        to_numpy = bool(arguments.get("to_numpy"))
        map_rows = rows_to_episodes if isinstance(rows, EpisodeRows) else sample_batches_to_episodes
        return {"episodes": map_rows(rows, schema, to_numpy=to_numpy)}

    def _validate_episodes(self, episodes: Sequence[SingleAgentEpisode]) -> Sequence[SingleAgentEpisode]:
        """Hook, in RLlib's form: return the episodes to add to the replay buffer, each once.

        Raises:
            ValueError: an episode has not ended.
        """
        unfinished = [episode.id_ for episode in episodes if not episode.is_done]
        if unfinished:
            raise ValueError(
                f"episode {unfinished[0]} is neither terminated nor truncated; a buffer only takes complete episodes"
            )
        seen_ids = self.__dict__.setdefault("_seen_ids", set())
        new_episodes = {episode.id_: episode for episode in reversed(episodes) if episode.id_ not in seen_ids}
        seen_ids.update(new_episodes)
        return list(reversed(new_episodes.values()))

    def _postprocess_and_sample(self, episodes: Sequence[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
        """Hook, in RLlib's form: add complete episodes to the replay buffer, and return the items drawn from it.

        Raises:
            Misuse: the algorithm's `n_step` is over 1.
        """
        if self.config.get("n_step", 1) not in (None, 1):
            raise Misuse("draws single timesteps from the buffer, but n_step is over 1: leave n_step out.")
        new_episodes = list_episodes(self._validate_episodes(episodes))
        buffer = self.episode_buffer
        name = type(buffer).__name__
        if new_episodes:
            with calling(f"{name}.add", buffer.add, _BUFFER_FIELD):
                buffer.add(new_episodes)
            self._has_added_episodes = True
        elif not self._has_added_episodes:
            return []  # no episode of the first rows was mapped or was valid
        sequence_length = self.config.sequence_length
        arguments = {
            "num_items": self.config.get("train_batch_size_per_learner"),
            "batch_length_T": sequence_length,
            "n_step": None if sequence_length else 1,
            "sample_episodes": True,
            "to_numpy": True,
            "lookback": 1,
            "min_batch_length_T": 0,
        }
        with calling(f"{name}.sample", buffer.sample, _BUFFER_FIELD):
            items = buffer.sample(**accepted_arguments(buffer.sample, arguments))
            return list_episodes(items)

    @classmethod
    def maps_any_rows(cls) -> bool:
        cls._refuse_mixed_forms()
        return is_in_rllib_form(cls)

    @classmethod
    def runs_connectors(cls) -> bool:
        return has_rllib_call(cls)

    @classmethod
    def unit_class(cls) -> type[OfflinePreLearner]:
        return OfflinePreLearner if has_rllib_call(cls) or has_rllib_init(cls) else cls

    @classmethod
    def kwargs_receivers(cls) -> tuple[Callable[..., Any], ...]:
        return (*super().kwargs_receivers(), cls._map_to_episodes, cls._map_sample_batch_to_episode)

    @classmethod
    def make_episodes(
        cls,
        rows: dict[str, NDArray] | Block,
        kwargs: Mapping[str, Any],
        training: Mapping[str, Any],
        location: str,
    ) -> Block | None:
        if not is_in_rllib_form(cls):
            if not training.get("options", {}).get("prelearner_buffer_class"):
                return super().make_episodes(rows, kwargs, training, location)
            if super()._maps_blocks() or is_user_code(cls.map_rows) or is_user_code(cls.__call__):
                raise SpecError(
                    f"{cls.__name__} has no method in RLlib's form, whose episodes a buffer could take: override "
                    "_map_to_episodes(self, batch, **kwargs), or leave the buffer out.",
                    field=_BUFFER_FIELD,
                )
        config = TrainingConfig(training)
        name = mapper_name(cls, config)
        method = getattr(cls, name)
        subject = cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}"
        with calling(f"{subject}, given {location},", method if is_user_code(method) else cls):
            blocks = [
                block
                for index, batch in enumerate(_split_rows(rows, config))
                if (
                    block := make_checked_block(
                        prelearn_rows(cls, batch, kwargs, training, f"{location}, {index}"),
                        None if has_rllib_call(cls) else config.observation_space,
                    )
                )
            ]
            return Block.concat(blocks) if blocks else None

    @classmethod
    def _refuse_mixed_forms(cls) -> None:
        """Refuse a method in Hindcast's form in a class that only maps rows.

        Raises:
            SpecError: there is such a method.
        """
        methods = {
            "_map_to_episodes": has_rllib_mapper(cls),
            "__call__": has_rllib_call(cls),
            "map_rows": False,
        }
        for name, is_in_form in methods.items():
            if cls.unit_class() is OfflinePreLearner and is_user_code(getattr(cls, name)) and not is_in_form:
                raise SpecError(
                    f"{cls.__name__} is in RLlib's form, since its {'__call__' if has_rllib_call(cls) else '__init__'} "
                    f"is, but its {name} is not: give {name} a parameter batch",
                    field="spec.pipeline.preLearner",
                )

    @classmethod
    def _maps_blocks(cls) -> bool:
        # A mapper of rows ran when the data were prepared.
        return super()._maps_blocks() and not has_rllib_mapper(cls)


def _make_buffer(buffer_class: Any, kwargs: Mapping[str, Any]) -> Any:
    """Construct a replay buffer; see `RLlibPreLearner.episode_buffer` for the errors."""
    name = getattr(buffer_class, "__name__", repr(buffer_class))
    missing_methods = [method for method in ("add", "sample") if not hasattr(buffer_class, method)]
    if isinstance(buffer_class, type) and missing_methods:
        raise SpecError(
            f"is {name!r}, which has no method {missing_methods[0]}: derive it from EpisodeReplayBuffer",
            field=_BUFFER_FIELD,
        )
    try:
        inspect.signature(buffer_class).bind(**kwargs)
        with calling(f"making {name}", buffer_class, _BUFFER_FIELD):
            return buffer_class(**kwargs)
    # Of Hindcast's buffers, or arguments that the class does not have.
    except (TypeError, ValueError) as error:
        raise SpecError(f"{name} refuses them: {error}", field=_BUFFER_KWARGS_FIELD) from error


def _split_rows(rows: Mapping[str, Any] | Block, config: TrainingConfig) -> Iterator[Mapping[str, Any]]:
    """Yield batches of rows; those of a block have up to `input_read_batch_size` complete episodes."""
    if not isinstance(rows, Block):
        yield rows
        return
    num_episodes = config.get("input_read_batch_size") or config.get("train_batch_size_per_learner")
    for block in split_block(rows, num_episodes or rows.num_episodes):
        yield EpisodeRows(block, config.observation_space, config.action_space)


def _find_config(args: Sequence[Any]) -> TrainingConfig | None:
    """Return the config of the pre-learner among the arguments; None if the method was called on the class."""
    return getattr(args[0], "config", None) if args else None


def _choose_schema(arguments: Mapping[str, Any], config: TrainingConfig | None) -> Mapping[str, Any] | None:
    return arguments.get("schema") or (config.get("input_read_schema") if config else None)
