"""RLlib's connectors for learners, under RLlib's names.

A training needs none of them to fill its batches. In `spec.pipeline.connectors` the `Add…` connectors name columns
that batches hold in addition to those that the algorithm needs. In a custom pipeline, and before a custom connector,
they do the same as RLlib's, on the episodes of a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from hindcast.episodes import batched, nested
from hindcast.episodes.columns import Columns
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.rllib.connectors.connector_v2 import BatchedNdArray, ConnectorV2, Items

Episodes = Sequence[SingleAgentEpisode]


class _AddObservations(ConnectorV2):
    """Adds the observations of all steps, shifted by `offset` steps, to the batch if it lacks the column.

    Attributes:
        added_columns: the name of the column.
        offset: 0 for the observation before each step, 1 for the observation after it.
    """

    added_columns: ClassVar[tuple[str, ...]]
    offset: ClassVar[int]

    def __call__(self, *, batch: Items, episodes: Episodes, **_: Any) -> Items:
        (column,) = self.added_columns
        if column not in batch:
            for episode in episodes:
                observations = episode.get_observations(slice(self.offset, self.offset + len(episode)))
                self.add_n_batch_items(batch, column, observations, len(episode), episode)
        return batch


class AddObservationsFromEpisodesToBatch(_AddObservations):
    """Adds `obs` of each step to the batch if it has no `obs`."""

    added_columns = (Columns.OBS,)
    offset = 0


class AddNextObservationsFromEpisodesToTrainBatch(_AddObservations):
    """Adds `new_obs`, the observation after each step, to the batch if it has no `new_obs`."""

    added_columns = (Columns.NEXT_OBS,)
    offset = 1


class AddColumnsFromEpisodesToTrainBatch(ConnectorV2):
    """Adds actions, rewards, `terminateds`, `truncateds` and all recorded model outputs to the batch."""

    added_columns = (Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)

    def __call__(self, *, batch: Items, episodes: Episodes, **_: Any) -> Items:
        """Add the columns that the batch does not have."""
        excluded = {*batch, Columns.STATE_IN, Columns.STATE_OUT}
        for episode in episodes:
            for name, values in _episode_columns(episode).items():
                if name not in excluded:
                    self.add_n_batch_items(batch, name, values, len(episode), episode)
        return batch


class BatchIndividualItems(ConnectorV2):
    """Stacks the items of all episodes, in order, to arrays: `{"default_policy": {column: [steps, ...]}}`."""

    def __init__(self, *spaces: gym.Space | None, multi_agent: bool = False, **kwargs: Any) -> None:
        super().__init__(*spaces, **kwargs)
        if multi_agent:
            raise ValueError("multi_agent is True, but there is only one agent")

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        """Stack the columns that are not arrays yet."""
        columns = batch.pop(DEFAULT_MODULE_ID, {})
        return {DEFAULT_MODULE_ID: {**columns, **{name: stack_items(items) for name, items in batch.items()}}}


class NumpyToTensor(ConnectorV2):
    """Converts arrays to tensors on the CPU; batches move to the learner's device later."""

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        """Convert float64 to float32, and leave text and objects as they are."""
        return {
            name: self(batch=dict(value)) if isinstance(value, Mapping) else _to_tensor(value)
            for name, value in batch.items()
        }


class FrameStackingLearner(ConnectorV2):
    """Stacks the last `num_frames` observations `[height, width, 1]` of each step to `[height, width, num_frames]`.

    Frames before the first one of an episode are zero. In a training `spec.model.frameStack` stacks frames instead,
    also when the policy acts.
    """

    def __init__(self, *spaces: gym.Space | None, num_frames: int = 1, **kwargs: Any) -> None:
        super().__init__(*spaces, **kwargs)
        self.num_frames = num_frames

    def recompute_output_observation_space(
        self,
        input_observation_space: gym.Space | None,
        input_action_space: gym.Space | None,  # noqa: ARG002
    ) -> gym.Space | None:
        """Return the space with `num_frames` as its last dimension."""
        space = input_observation_space
        if not isinstance(space, gym.spaces.Box):
            return space
        low, high = (np.repeat(bound, self.num_frames, axis=-1) for bound in (space.low, space.high))
        return gym.spaces.Box(low, high, dtype=space.dtype.type)

    def __call__(self, *, batch: Items, episodes: Episodes, **_: Any) -> Items:
        """Add the stacked frames of each step as `obs`."""
        for episode in episodes:
            observations = nested.map_leaves(self._stack, episode.get_observations(slice(0, len(episode))))
            self.add_n_batch_items(batch, Columns.OBS, observations, len(episode), episode)
        return batch

    def _stack(self, frames: NDArray[Any]) -> NDArray[Any]:
        """Stack `[T, height, width, 1]` to `[T, height, width, num_frames]`."""
        if frames.ndim != 4 or frames.shape[-1] != 1:
            raise ValueError(
                f"observations of shape {list(frames.shape[1:])} cannot be stacked: they must be [height, width, 1]"
            )
        zeros = np.zeros((self.num_frames - 1, *frames.shape[1:]), frames.dtype)
        padded = np.concatenate([zeros, frames])[..., 0]
        return np.stack([padded[k : k + len(frames)] for k in range(self.num_frames)], axis=-1)


class _UnneededConnector(ConnectorV2):
    """Base class of RLlib's connectors that Hindcast does not need; they change nothing.

    Attributes:
        reason: why it is not needed.
    """

    reason: ClassVar[str]

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        """Return the batch unchanged."""
        return batch


class AddOneTsToEpisodesAndTruncate(_UnneededConnector):
    reason = "episodes are stored with their final observation"


class GeneralAdvantageEstimation(_UnneededConnector):
    reason = "algorithms that use advantages compute them themselves"


class AddStatesFromEpisodesToBatch(_UnneededConnector):
    reason = "batches of sequences contain recurrent states; spec.model sets how"


class AddTimeDimToBatchAndZeroPad(_UnneededConnector):
    reason = "sequences are cut from episodes; spec.model sets how"


class AgentToModuleMapping(_UnneededConnector):
    reason = "there is one agent and one module"


LIBRARY_CONNECTORS: Final = {
    connector.__name__: connector
    for connector in (
        AddObservationsFromEpisodesToBatch,
        AddNextObservationsFromEpisodesToTrainBatch,
        AddColumnsFromEpisodesToTrainBatch,
    )
}
"""Connectors that `spec.pipeline.connectors` may name without their module."""
UNNEEDED_CONNECTORS: Final = {
    "BatchIndividualItems": "data stay in columns from storage to batch, so there are no single items to batch",
    "NumpyToTensor": "batches are already tensors on the learner's device",
    "FrameStackingLearner": "spec.model.frameStack stacks frames, both in training and in acting",
    "MeanStdFilter": "spec.model.observationFilter normalises observations, both in training and in acting",
    **{
        connector.__name__: connector.reason
        for connector in (
            AddOneTsToEpisodesAndTruncate,
            GeneralAdvantageEstimation,
            AddStatesFromEpisodesToBatch,
            AddTimeDimToBatchAndZeroPad,
            AgentToModuleMapping,
        )
    },
}
"""RLlib's connectors that a training does not need -> the reason."""


def default_connectors() -> list[ConnectorV2]:
    """Return the connectors at the end of RLlib's pipeline for learners."""
    return [
        AddObservationsFromEpisodesToBatch(),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
        NumpyToTensor(),
    ]


def is_default(connector: Any) -> bool:
    """Return True if a connector is one of RLlib's default or unneeded connectors, which a training does not need."""
    return type(connector).__module__ == __name__ and not isinstance(
        connector, AddNextObservationsFromEpisodesToTrainBatch | FrameStackingLearner
    )


def stack_items(items: Any) -> Any:
    """Stack the items of all episodes, in order, to nested arrays `[items, ...]`.

    Args:
        items: a list of items, each of one step or of several (`BatchedNdArray`); or such lists by episode,
            `{(episode id,): items}`. Anything else, such as arrays, is returned unchanged.
    """
    if isinstance(items, Mapping) and all(isinstance(key, tuple) for key in items):
        items = [item for episode_items in items.values() for item in episode_items]
    if not isinstance(items, list):
        return items
    if not any(isinstance(leaf, BatchedNdArray) for item in items for leaf in nested.leaves(item)):
        return batched.stack(items)
    batches = [
        item if isinstance(next(nested.leaves(item)), BatchedNdArray) else batched.stack([item])
        for item in items
    ]
    arrays = [nested.map_leaves(np.asarray, batch) for batch in batches]
    return batched.concatenate(arrays)


def _episode_columns(episode: SingleAgentEpisode) -> dict[str, Any]:
    """Return all columns of an episode except observations and infos, `[T, ...]` each."""
    num_steps = len(episode)
    ends = {
        Columns.TERMINATEDS: episode.is_terminated,
        Columns.TRUNCATEDS: episode.is_truncated,
    }
    flags = {
        name: np.arange(1, num_steps + 1) == (num_steps if is_set else 0) for name, is_set in ends.items()
    }
    outputs = {name: episode.get_extra_model_outputs(name) for name in episode.extra_model_outputs}
    return {
        Columns.ACTIONS: episode.get_actions(slice(0, num_steps)),
        Columns.REWARDS: episode.get_rewards(slice(0, num_steps)),
        **flags,
        **outputs,
    }


def _to_tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return value
    is_float64 = value.dtype == np.float64
    return torch.from_numpy(np.ascontiguousarray(value, np.float32 if is_float64 else value.dtype))
