"""`RLlibPreLearner`: the class that users subclass to write a pre-learner, in Hindcast's form or in RLlib's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import gymnasium as gym
from numpy.typing import NDArray

from hindcast.datasets.dataset import Dataset
from hindcast.episodes.block import Block
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.pipeline.contracts import as_read_only
from hindcast.pipeline.prelearner import OfflinePreLearner, make_checked_block
from hindcast.rllib.multi_rl_module import MultiRLModule
from hindcast.rllib.row_mapping import (
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
from hindcast.rllib.training_config import TrainingConfig
from hindcast.user_code import calling, is_user_code

_NO_BUFFER: Final = "timesteps are shuffled in windows (pipeline.windowSteps), not drawn from a buffer"


class RLlibPreLearner(OfflinePreLearner):
    """A pre-learner. Users know this class as `hindcast.OfflinePreLearner`.

    A subclass may be in Hindcast's form, see the base class, or in RLlib's. Then it maps rows of files, once, before
    training: `_map_to_episodes(batch, ...)`, static or not, and `_map_sample_batch_to_episode(batch, ...)` return
    episodes; `__call__(batch)` returns a module's batch, of which each row is a separate item. `__init__` then gets
    `config` (a `TrainingConfig`), `spaces`, `module_spec` and RLlib's other arguments, and only `__call__` runs the
    training's connectors.

    Args:
        dataset: see `OfflinePreLearner`; None in RLlib's form.
        config: in RLlib's form, the training's options.
        spaces: in RLlib's form, (observation space, action space); None takes the spaces of the config.
        kwargs: the other arguments of `OfflinePreLearner`; or RLlib's, which are ignored.
    """

    unsupported_overrides: ClassVar[Mapping[str, str]] = {
        "_validate_episodes": "override _map_to_episodes(self, block), and raise there",
        "_postprocess_and_sample": "override _map_to_episodes(self, block), or sample in a subclass of OfflineData",
        "_should_module_be_updated": "the only module is always trained",
        "build_learner_connector": "override AlgorithmConfig.build_learner_connector",
        "default_prelearner_buffer_class": _NO_BUFFER,
        "default_prelearner_buffer_kwargs": _NO_BUFFER,
    }

    def __init__(
        self,
        dataset: Dataset | None = None,
        *,
        config: TrainingConfig | None = None,
        spaces: tuple[gym.Space | None, gym.Space | None] | None = None,
        **kwargs: Any,
    ) -> None:
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

    def _map_rows_to_batch(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Convert rows to a module's batch (`default_policy/obs` …) by episodes and connectors."""
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

    def _map_to_episodes(self, *args: Any, **kwargs: Any) -> Any:
        """Hook: map stored data to episodes.

        Args:
            args: a block as read; or, in RLlib's form, perhaps the rows of timesteps, which are otherwise `batch`.
            kwargs: in RLlib's form the arguments of `call_mapper`, such as `batch` and `schema`.

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

    @classmethod
    def maps_any_rows(cls) -> bool:
        return is_in_rllib_form(cls)

    @classmethod
    def runs_connectors(cls) -> bool:
        return has_rllib_call(cls)

    @classmethod
    def unit_class(cls) -> type[OfflinePreLearner]:
        takes_config = "config" in inspect.signature(cls.__init__).parameters
        maps_only_rows = has_rllib_call(cls) or (is_user_code(cls.__init__) and takes_config)
        return OfflinePreLearner if maps_only_rows else cls

    @classmethod
    def row_mapper(cls) -> Callable[..., Any]:
        return cls._map_to_episodes if has_rllib_mapper(cls) else cls.map_rows

    @classmethod
    def make_episodes(
        cls, rows: dict[str, NDArray], kwargs: Mapping[str, Any], training: Mapping[str, Any], location: str
    ) -> Block | None:
        if not is_in_rllib_form(cls):
            return super().make_episodes(rows, kwargs, training, location)
        config = TrainingConfig(training)
        name = mapper_name(cls, config)
        with calling(f"{cls.__name__}.{name}, given {location},", getattr(cls, name)):
            return make_checked_block(
                cls,
                lambda: prelearn_rows(cls, as_read_only(rows), kwargs, training, location),
                None if has_rllib_call(cls) else config.observation_space,
            )

    @classmethod
    def _maps_blocks(cls) -> bool:
        # A mapper of rows ran when the data were prepared.
        return super()._maps_blocks() and not has_rllib_mapper(cls)


def _find_rows(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rows among the arguments of a hook in RLlib's form: `batch`, else the first mapping."""
    rows = kwargs.get("batch", next((argument for argument in args if isinstance(argument, Mapping)), None))
    return rows or {}
