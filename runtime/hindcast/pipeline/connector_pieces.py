"""RLlib's connector pieces for learners, by its names: those that pipelines are built of, and those without need here.

A training takes columns to batches by itself, without these: in `spec.pipeline.connectors` the `Add…` pieces say which
columns batches hold in addition to those that the algorithm needs. In a custom pipeline, and before a custom piece,
they do what RLlib's do, on the episodes of a unit.
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
from hindcast.pipeline.connector_v2 import BatchedNdArray, ConnectorV2, Items

Episodes = Sequence[SingleAgentEpisode]


class _AddObservations(ConnectorV2):
    """A column of observations into the batch, unless it is in it: those of the steps, or so many steps later."""

    added_columns: ClassVar[tuple[str, ...]]
    later: ClassVar[int]

    def __call__(self, *, batch: Items, episodes: Episodes, **_: Any) -> Items:
        (column,) = self.added_columns
        if column not in batch:
            for episode in episodes:
                observations = episode.get_observations(slice(self.later, self.later + len(episode)))
                self.add_n_batch_items(batch, column, observations, len(episode), episode)
        return batch


class AddObservationsFromEpisodesToBatch(_AddObservations):
    """`obs` of each step into the batch, unless they are in it."""

    added_columns = (Columns.OBS,)
    later = 0


class AddNextObservationsFromEpisodesToTrainBatch(_AddObservations):
    """`new_obs` of each step into the batch, unless they are in it: the observation after it, also the final one."""

    added_columns = (Columns.NEXT_OBS,)
    later = 1


class AddColumnsFromEpisodesToTrainBatch(ConnectorV2):
    """Actions, rewards, `terminateds`, `truncateds` and all recorded model outputs into the batch."""

    added_columns = (Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)

    def __call__(self, *, batch: Items, episodes: Episodes, **_: Any) -> Items:
        """Those that are not in it."""
        there = {*batch, Columns.STATE_IN, Columns.STATE_OUT}
        for episode in episodes:
            for name, values in _columns_of(episode).items():
                if name not in there:
                    self.add_n_batch_items(batch, name, values, len(episode), episode)
        return batch


class BatchIndividualItems(ConnectorV2):
    """Items of episodes as arrays: `{"default_policy": {column: [steps, ...]}}`, of all episodes in their order."""

    def __init__(self, *spaces: gym.Space | None, multi_agent: bool = False, **kwargs: Any) -> None:
        super().__init__(*spaces, **kwargs)
        if multi_agent:
            raise ValueError("multi_agent is True, and there is one agent")

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        """Columns that are arrays already stay."""
        own = batch.pop(DEFAULT_MODULE_ID, {})
        return {DEFAULT_MODULE_ID: {**own, **{name: stack_items(items) for name, items in batch.items()}}}


class NumpyToTensor(ConnectorV2):
    """Arrays as tensors, on the CPU: batches go to the learner's device later."""

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        """Floats become float32; text and objects stay."""
        return {
            name: self(batch=dict(value)) if isinstance(value, Mapping) else _tensor(value)
            for name, value in batch.items()
        }


class FrameStackingLearner(ConnectorV2):
    """The last `num_frames` observations `[height, width, 1]` of each step as one, `[height, width, num_frames]`.

    Those before an episode's first are zero. (In a training `spec.model.frameStack` does it, in acting too.)
    """

    def __init__(self, *spaces: gym.Space | None, num_frames: int = 1, **kwargs: Any) -> None:
        super().__init__(*spaces, **kwargs)
        self.num_frames = num_frames

    def recompute_output_observation_space(
        self,
        input_observation_space: gym.Space | None,
        input_action_space: gym.Space | None,  # noqa: ARG002
    ) -> gym.Space | None:
        """With `num_frames` as its last dimension."""
        space = input_observation_space
        if not isinstance(space, gym.spaces.Box):
            return space
        low, high = (np.repeat(bound, self.num_frames, axis=-1) for bound in (space.low, space.high))
        return gym.spaces.Box(low, high, dtype=space.dtype.type)

    def __call__(self, *, batch: Items, episodes: Episodes, **_: Any) -> Items:
        """`obs` of each step."""
        for episode in episodes:
            stacked = nested.map_leaves(self._stacked, episode.get_observations(slice(0, len(episode))))
            self.add_n_batch_items(batch, Columns.OBS, stacked, len(episode), episode)
        return batch

    def _stacked(self, frames: NDArray[Any]) -> NDArray[Any]:
        if frames.ndim != 4 or frames.shape[-1] != 1:
            raise ValueError(
                f"observations of shape {list(frames.shape[1:])} cannot be stacked: they must be [height, width, 1]"
            )
        before = np.zeros((self.num_frames - 1, *frames.shape[1:]), frames.dtype)
        padded = np.concatenate([before, frames])[..., 0]
        return np.stack([padded[k : k + len(frames)] for k in range(self.num_frames)], axis=-1)


class _WithoutNeed(ConnectorV2):
    """A piece of RLlib's that has nothing to do here, and why; it leaves episodes and batch as they are."""

    why: ClassVar[str]

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        """Nothing."""
        return batch


class AddOneTsToEpisodesAndTruncate(_WithoutNeed):
    why = "episodes are stored with their final observation"


class GeneralAdvantageEstimation(_WithoutNeed):
    why = "algorithms that use advantages compute them by themselves"


class AddStatesFromEpisodesToBatch(_WithoutNeed):
    why = "recurrent states come with sequences, as spec.model says"


class AddTimeDimToBatchAndZeroPad(_WithoutNeed):
    why = "sequences are cut from episodes as spec.model says"


class AgentToModuleMapping(_WithoutNeed):
    why = "there is one agent and one module"


LIBRARY_CONNECTORS: Final = {
    piece.__name__: piece
    for piece in (
        AddObservationsFromEpisodesToBatch,
        AddNextObservationsFromEpisodesToTrainBatch,
        AddColumnsFromEpisodesToTrainBatch,
    )
}
"""Those that `spec.pipeline.connectors` names directly."""
UNNEEDED_CONNECTORS: Final = {
    "BatchIndividualItems": "data are columns from storage to batch, so there are no single items to batch",
    "NumpyToTensor": "batches are tensors on the learner's device already",
    "FrameStackingLearner": "frames are stacked by spec.model.frameStack, in training as in acting",
    "MeanStdFilter": "observations are normalised by spec.model.observationFilter, in training as in acting",
    **{
        piece.__name__: piece.why
        for piece in (
            AddOneTsToEpisodesAndTruncate,
            GeneralAdvantageEstimation,
            AddStatesFromEpisodesToBatch,
            AddTimeDimToBatchAndZeroPad,
            AgentToModuleMapping,
        )
    },
}
"""RLlib's pieces that a training has no need of, and why."""


def default_connectors() -> list[ConnectorV2]:
    """What RLlib's pipeline for learners ends with."""
    return [
        AddObservationsFromEpisodesToBatch(),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
        NumpyToTensor(),
    ]


def is_default(piece: Any) -> bool:
    """Whether a piece is of `default_pieces`, or has nothing to do: what a training does without it."""
    return type(piece).__module__ == __name__ and not isinstance(
        piece, AddNextObservationsFromEpisodesToTrainBatch | FrameStackingLearner
    )


def stack_items(items: Any) -> Any:
    """Items as nested arrays `[items, ...]`, those of all episodes end to end.

    Args:
        items: a list of items, each of one step or `BatchedNdArray`s of several; or `{(id,): such a list}`; nested
            arrays stay.
    """
    if isinstance(items, Mapping) and all(isinstance(key, tuple) for key in items):
        items = [item for own in items.values() for item in own]
    if not isinstance(items, list):
        return items
    if not any(isinstance(leaf, BatchedNdArray) for item in items for leaf in nested.leaves(item)):
        return batched.stack(items)
    parts = [
        item if isinstance(next(nested.leaves(item)), BatchedNdArray) else batched.stack([item])
        for item in items
    ]
    plain = [nested.map_leaves(np.asarray, part) for part in parts]
    return batched.concatenate(plain)


def _columns_of(episode: SingleAgentEpisode) -> dict[str, Any]:
    """`[T, ...]` each."""
    steps = len(episode)
    ends = {
        Columns.TERMINATEDS: episode.is_terminated,
        Columns.TRUNCATEDS: episode.is_truncated,
    }
    flags = {name: np.arange(1, steps + 1) == (steps if ended else 0) for name, ended in ends.items()}
    outputs = {name: episode.get_extra_model_outputs(name) for name in episode.extra_model_outputs}
    return {
        Columns.ACTIONS: episode.get_actions(slice(0, steps)),
        Columns.REWARDS: episode.get_rewards(slice(0, steps)),
        **flags,
        **outputs,
    }


def _tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return value
    wide = value.dtype == np.float64
    return torch.from_numpy(np.ascontiguousarray(value, np.float32 if wide else value.dtype))
