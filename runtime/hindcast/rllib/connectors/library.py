"""RLlib's connectors for learners, under RLlib's names and with RLlib's arguments.

A training needs none of them to fill its batches. In `spec.pipeline.connectors` the `Add…` connectors name columns
that batches hold in addition to those that the algorithm needs, and `GeneralAdvantageEstimation` sets the arguments of
the algorithm's own estimate. In a custom pipeline, and before a custom connector, they do the same as RLlib's, on the
episodes of a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from hindcast.episodes import batched, nested
from hindcast.episodes.columns import Columns, leaves_of
from hindcast.episodes.convert import episodes_to_block
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.learn.gae import block_gae, discounted_sums
from hindcast.models.rl_module import RLModule
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.rllib.connectors.connector_v2 import BatchedNdArray, ConnectorV2, Items
from hindcast.user_code import Misuse

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


class AddInfosFromEpisodesToTrainBatch(ConnectorV2):
    """Adds the `infos` of each step, dictionaries, to the batch if it has none; for the connectors that follow."""

    def __call__(self, *, batch: Items, episodes: Episodes, **_: Any) -> Items:
        if Columns.INFOS not in batch:
            for episode in episodes:
                infos = list(episode.get_infos(slice(0, len(episode))))
                self.add_n_batch_items(batch, Columns.INFOS, infos, len(episode), episode)
        return batch


class ComputeReturnsToGo(ConnectorV2):
    """Adds `returns_to_go`: the discounted sum of the rewards from each step to the end of its episode.

    If steps have durations (`delta_t`), gamma discounts per unit of time.

    Args:
        spaces: see `ConnectorV2`.
        gamma: discount, from 0 to 1.
        kwargs: see `ConnectorV2`.
    """

    columns = (Columns.RETURNS_TO_GO,)

    def __init__(self, *spaces: gym.Space | None, gamma: float, **kwargs: Any) -> None:
        super().__init__(*spaces, **kwargs)
        self.gamma = _check_fraction("gamma", gamma)

    def __call__(self, *, batch: Items, episodes: Episodes, **_: Any) -> Items:
        for episode in episodes:
            rewards = torch.from_numpy(np.array(episode.get_rewards(slice(0, len(episode))), np.float64))
            decay = torch.full_like(rewards, self.gamma)
            if Columns.DELTA_T in episode.extra_model_outputs:
                delta_t = np.array(episode.get_extra_model_outputs(Columns.DELTA_T), np.float64)
                decay = self.gamma ** torch.from_numpy(delta_t)
            returns = discounted_sums(rewards, decay).numpy()
            self.add_n_batch_items(batch, Columns.RETURNS_TO_GO, returns, len(episode), episode)
        return batch


class GeneralAdvantageEstimation(ConnectorV2):
    """Adds `value_targets` and standardised `advantages` (GAE, arXiv 1506.02438) to the module's batch.

    In a training it is not called: the algorithm computes its value targets with these arguments and the current
    weights. An algorithm that has no value targets refuses it.

    Args:
        spaces: see `ConnectorV2`.
        gamma: discount, from 0 to 1.
        lambda_: from 0, the rewards of one step, to 1, those of the whole episode.
        kwargs: see `ConnectorV2`.
    """

    def __init__(self, *spaces: gym.Space | None, gamma: float, lambda_: float, **kwargs: Any) -> None:
        super().__init__(*spaces, **kwargs)
        self.gamma, self.lambda_ = _check_fraction("gamma", gamma), _check_fraction("lambda_", lambda_)

    def __call__(
        self, *, batch: Items, episodes: Episodes, rl_module: Mapping[str, RLModule], **_: Any
    ) -> Items:
        """Add the columns, from the values of the module, the batch's rewards and the ends of the episodes.

        Raises:
            Misuse: the batch is not complete, because `BatchIndividualItems` did not run before.
            NotImplementedError: the module has no value function.
        """
        if DEFAULT_MODULE_ID not in batch:
            raise Misuse("got a batch of single items: it must be after BatchIndividualItems.")
        module_batch, module = batch[DEFAULT_MODULE_ID], rl_module[DEFAULT_MODULE_ID]
        for episode in episodes:
            episode.to_numpy()
        block = episodes_to_block(list(episodes))
        rewards = nested.map_leaves(
            np.asarray, module_batch.get(Columns.REWARDS, block.columns[Columns.REWARDS])
        )
        block = block.with_columns({**block.columns, Columns.REWARDS: rewards})
        observations = {leaf: block.columns[leaf] for leaf in leaves_of(Columns.OBS, block.columns)}
        with torch.no_grad():
            values = module.compute_values(
                {leaf: torch.from_numpy(array) for leaf, array in observations.items()}
            )
        advantages, value_targets = block_gae(block, values, self.gamma, self.lambda_)
        std = advantages.std(correction=0).clamp(min=1e-4)
        module_batch[Columns.ADVANTAGES] = (advantages - advantages.mean()) / std
        module_batch[Columns.VALUE_TARGETS] = value_targets
        return batch


class FlattenObservations(ConnectorV2):
    """Adds `obs` of each step as one vector: numbers as they are, discrete components one-hot.

    In a training networks flatten observations themselves.

    Args:
        input_observation_space: space of the episodes' observations, of any kind.
        input_action_space: see `ConnectorV2`.
        multi_agent: must be False.
        agent_ids: must be None.
        as_learner_connector: must be True; without it RLlib's changes the last observation of playing episodes.
        keys_to_remove: keys of a Dict space to leave out.
        kwargs: see `ConnectorV2`.
    """

    def __init__(
        self,
        input_observation_space: gym.Space | None = None,
        input_action_space: gym.Space | None = None,
        *,
        multi_agent: bool = False,
        agent_ids: Any = None,
        as_learner_connector: bool = False,
        keys_to_remove: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, **kwargs)
        _refuse_several_agents(multi_agent or agent_ids is not None)
        if not as_learner_connector:
            raise ValueError(
                "as_learner_connector is False, but there are no connectors between environment and module: pass "
                'True, or write .environment(wrappers=["gymnasium.wrappers:FlattenObservation"])'
            )
        self.keys_to_remove = tuple(keys_to_remove or ())
        if self.keys_to_remove and not isinstance(input_observation_space, gym.spaces.Dict):
            raise ValueError(f"keys_to_remove requires a Dict space, not {input_observation_space}")

    def recompute_output_observation_space(
        self,
        input_observation_space: gym.Space | None,
        input_action_space: gym.Space | None,  # noqa: ARG002
    ) -> gym.Space | None:
        """Return an unbounded Box of one dimension."""
        if input_observation_space is None:
            return None
        size = gym.spaces.utils.flatdim(self._without_removed_keys(input_observation_space))
        return gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def __call__(self, *, batch: Items, episodes: Episodes, **_: Any) -> Items:
        space = self._without_removed_keys(self.input_observation_space)
        for episode in episodes:
            observations = episode.get_observations(slice(0, len(episode)))
            steps = batched.unstack(observations) if episode.is_numpy else observations
            vectors = [
                gym.spaces.utils.flatten(space, self._without_removed_keys(observation))
                for observation in steps
            ]
            self.add_n_batch_items(
                batch, Columns.OBS, np.stack(vectors).astype(np.float32), len(episode), episode
            )
        return batch

    def _without_removed_keys(self, value: Any) -> Any:
        """Return a space or an observation without the removed keys."""
        if not self.keys_to_remove:
            return value
        entries = {key: entry for key, entry in value.items() if key not in self.keys_to_remove}
        return gym.spaces.Dict(entries) if isinstance(value, gym.spaces.Dict) else entries


class BatchIndividualItems(ConnectorV2):
    """Stacks the items of all episodes, in order, to arrays: `{"default_policy": {column: [steps, ...]}}`."""

    def __init__(self, *spaces: gym.Space | None, multi_agent: bool = False, **kwargs: Any) -> None:
        super().__init__(*spaces, **kwargs)
        _refuse_several_agents(multi_agent)

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        """Stack the columns that are not arrays yet."""
        columns = batch.pop(DEFAULT_MODULE_ID, {})
        stacked_columns = {
            name: join_items(items) if name == Columns.INFOS else stack_items(items)
            for name, items in batch.items()
        }
        return {DEFAULT_MODULE_ID: {**columns, **stacked_columns}}


class NumpyToTensor(ConnectorV2):
    """Converts arrays to tensors on the CPU; batches move to the learner's device later."""

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        """Convert float64 to float32, and leave text and objects as they are."""
        return {
            name: self(batch=dict(value)) if isinstance(value, Mapping) else _to_tensor(value)
            for name, value in batch.items()
        }


class TensorToNumpy(ConnectorV2):
    """Converts tensors to arrays on the CPU."""

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        return dict(nested.map_leaves(_to_array, batch))


class FrameStackingLearner(ConnectorV2):
    """Stacks the last `num_frames` observations `[height, width, 1]` of each step to `[height, width, num_frames]`.

    Frames before the first one of an episode are zero. In a training `spec.model.frameStack` stacks frames instead,
    also when the policy acts.
    """

    def __init__(
        self, *spaces: gym.Space | None, num_frames: int = 1, multi_agent: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*spaces, **kwargs)
        _refuse_several_agents(multi_agent)
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
            raise Misuse(
                f"got observations of shape {list(frames.shape[1:])}: only [height, width, 1] can be stacked."
            )
        zeros = np.zeros((self.num_frames - 1, *frames.shape[1:]), frames.dtype)
        padded = np.concatenate([zeros, frames])[..., 0]
        return np.stack([padded[k : k + len(frames)] for k in range(self.num_frames)], axis=-1)


class _UnneededConnector(ConnectorV2):
    """Base class of RLlib's connectors whose work the pipeline does; they change nothing.

    Attributes:
        reason: why it is not needed.
    """

    reason: ClassVar[str]

    def __call__(self, *, batch: Items, **_: Any) -> Items:
        """Return the batch unchanged."""
        return batch


class AddOneTsToEpisodesAndTruncate(_UnneededConnector):
    reason = "episodes are stored with their final observation"


class AddStatesFromEpisodesToBatch(_UnneededConnector):
    reason = "batches of sequences contain recurrent states; spec.model sets how"


class AddTimeDimToBatchAndZeroPad(_UnneededConnector):
    reason = "sequences are cut from episodes; spec.model sets how"


class AgentToModuleMapping(_UnneededConnector):
    reason = "there is one agent and one module"

    def __init__(
        self,
        *spaces: gym.Space | None,
        rl_module_specs: Any = None,  # noqa: ARG002
        agent_to_module_mapping_fn: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*spaces, **kwargs)
        _refuse_several_agents(agent_to_module_mapping_fn is not None)


LIBRARY_CONNECTORS: Final = {
    connector.__name__: connector
    for connector in (
        AddObservationsFromEpisodesToBatch,
        AddNextObservationsFromEpisodesToTrainBatch,
        AddColumnsFromEpisodesToTrainBatch,
        ComputeReturnsToGo,
        GeneralAdvantageEstimation,
    )
}
"""Connectors that `spec.pipeline.connectors` may name without their module."""
UNNEEDED_CONNECTORS: Final = {
    "AddInfosFromEpisodesToTrainBatch": "batches only contain numbers; connectors read infos by episode.get_infos()",
    "BatchIndividualItems": "data stay in columns from storage to batch, so there are no single items to batch",
    "FlattenObservations": "networks flatten observations themselves; to remove keys, record with a wrapper of the "
    "environment (gymnasium.wrappers:FilterObservation)",
    "FrameStackingLearner": "spec.model.frameStack stacks frames, both in training and in acting",
    "MeanStdFilter": "spec.model.observationFilter normalises observations, both in training and in acting",
    "NumpyToTensor": "batches are already tensors on the learner's device",
    "TensorToNumpy": "losses compute with tensors",
    **{
        connector.__name__: connector.reason
        for connector in (
            AddOneTsToEpisodesAndTruncate,
            AddStatesFromEpisodesToBatch,
            AddTimeDimToBatchAndZeroPad,
            AgentToModuleMapping,
        )
    },
}
"""RLlib's connectors that a training does not need -> the reason."""


def connector_table() -> str:
    """Return RLlib's connectors and what a training does with them as Markdown."""
    effects = {
        AddObservationsFromEpisodesToBatch: "batches contain `obs`",
        AddNextObservationsFromEpisodesToTrainBatch: "batches contain `new_obs`",
        AddColumnsFromEpisodesToTrainBatch: "batches contain all recorded columns",
        ComputeReturnsToGo: "batches contain `returns_to_go`, with its `gamma`",
        GeneralAdvantageEstimation: "MARWIL's value targets have its `gamma` and `lambda_`; refused by others",
    }
    rows = {connector.__name__: effect for connector, effect in effects.items()} | UNNEEDED_CONNECTORS
    lines = ["| Connector | In a training |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {rows[name]} |" for name in sorted(rows))])


def default_connectors() -> list[ConnectorV2]:
    """Return the connectors at the end of RLlib's pipeline for learners."""
    return [
        AddObservationsFromEpisodesToBatch(),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
        NumpyToTensor(),
    ]


def is_unneeded(connector: Any) -> bool:
    """Return True if a training does without one of RLlib's connectors; False for the subclasses of users."""
    return type(connector).__module__ == __name__ and type(connector).__name__ in UNNEEDED_CONNECTORS


def join_items(items: Any) -> Any:
    """Return the items of all episodes, `{(episode id,): items}`, as one list; anything else unchanged."""
    if isinstance(items, Mapping) and all(isinstance(key, tuple) for key in items):
        return [item for episode_items in items.values() for item in episode_items]
    return items


def stack_items(items: Any) -> Any:
    """Stack the items of all episodes, in order, to nested arrays `[items, ...]`.

    Args:
        items: a list of items, each of one step or of several (`BatchedNdArray`); or such lists by episode,
            `{(episode id,): items}`. Anything else, such as arrays, is returned unchanged.
    """
    items = join_items(items)
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


def _to_array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def _check_fraction(name: str, value: Any) -> float:
    """Return a discount or a λ as a float.

    Raises:
        ValueError: it is not a number from 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}, expected a number from 0 to 1")
    return float(value)


def _refuse_several_agents(is_requested: bool) -> None:
    if is_requested:
        raise ValueError(
            "there is only one agent: leave out multi_agent, agent_ids and the mapping of agents"
        )


def _to_tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return value
    is_float64 = value.dtype == np.float64
    return torch.from_numpy(np.ascontiguousarray(value, np.float32 if is_float64 else value.dtype))
