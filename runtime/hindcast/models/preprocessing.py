"""What stands between environment and module: observation filter, frame stack, action scaling.

Recorded are the environment's raw observations and the module's raw actions, so the same `Preprocessing`
serves acting and training, and it is saved with the policy. Shape suffix: B = rows; in acting, row i is that
of slot i of the environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.alias_generators import to_camel
from torch import Tensor

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.episodes.columns import Columns
from hindcast.episodes.nested import flatten, unflatten
from hindcast.episodes.spaces import flatten_space, space_from_struct, space_struct
from hindcast.models.mean_std import CLIP, MeanStdFilter

Arrays = dict[str, NDArray[Any]]
Json = dict[str, Any]
# Item i is the action of slot i: an array, or a list for composite spaces.
EnvActions = NDArray[Any] | list[Any]

_OPTIONS = ("observation_filter", "frame_stack", "normalize_actions", "clip_actions")
"""Of `Preprocessing`."""


class FrameStack:
    """The last k observations of each slot, concatenated on the last axis, oldest first.

    `[B, 84, 84, 1]` becomes `[B, 84, 84, k]`, `[B, 4]` becomes `[B, 4 k]`. Frames before an episode's first
    are zero, as RLlib's.

    Args:
        k: frames.
        leaves: names of the leaves to stack; others pass as they are.
    """

    def __init__(self, k: int, leaves: Sequence[str]) -> None:
        self._k = k
        self._leaves = frozenset(leaves)
        self._history: Arrays = {}

    def __call__(self, batch: Mapping[str, NDArray[Any]], is_first: NDArray[np.bool_] | None) -> Arrays:
        """Add a step of every slot; those in `is_first` `[B]` begin an episode (all of them, at first).

        Raises:
            ValueError: another number of slots than in the step before, and not all begin an episode.
        """
        self._history = {name: self._stacked(name, rows, is_first) for name, rows in batch.items()}
        return self._history

    def reset(self) -> None:
        """Forget all slots."""
        self._history = {}

    def _stacked(self, name: str, rows: NDArray[Any], is_first: NDArray[np.bool_] | None) -> NDArray[Any]:
        if name not in self._leaves:
            return rows
        width = rows.shape[-1]
        previous = self._history.get(name)
        if previous is None or (is_first is not None and is_first.all()):
            previous = np.zeros((*rows.shape[:-1], self._k * width), dtype=rows.dtype)
        elif len(previous) != len(rows):
            raise ValueError(
                f"{len(rows)} slots, where the frame stack holds {len(previous)}; reset it first"
            )
        stacked = np.concatenate([previous[..., width:], rows], -1)
        if is_first is not None and is_first.any():
            stacked[is_first, ..., :-width] = 0
        return stacked


class ActionToEnv:
    """Module actions to environment actions.

    With `normalize_actions`, the module acts within ±1 in bounded float boxes; its actions are scaled to the
    bounds and clipped to them. With `clip_actions`, other boxes are clipped to theirs. Discrete actions pass.

    Args:
        action_space: the environment's.
        normalize_actions: see above.
        clip_actions: see above.

    Attributes:
        module_space: the space the module acts in.
        scaled_leaves: the leaves that are scaled.
    """

    def __init__(
        self, action_space: gym.Space, normalize_actions: bool = True, clip_actions: bool = False
    ) -> None:
        self._struct = space_struct(action_space)
        self._spaces = flatten_space(action_space, Columns.ACTIONS)
        self._scaled = {
            leaf: _Scale(space)
            for leaf, space in self._spaces.items()
            if normalize_actions and is_float_box(space) and space.is_bounded()
        }
        self.scaled_leaves = tuple(self._scaled)
        self._clip = clip_actions
        units = {
            leaf: gym.spaces.Box(-1.0, 1.0, self._spaces[leaf].shape, np.float32) for leaf in self._scaled
        }
        self.module_space = space_from_struct(
            unflatten({**self._spaces, **units}, Columns.ACTIONS, self._struct)
        )

    def __call__(self, actions: Mapping[str, NDArray[Any]]) -> EnvActions:
        """B environment actions: item i is the action of row i.

        Args:
            actions: leaf -> `[B, *shape]`.

        Returns:
            An array `[B, *shape]` of the space's dtype, or for Dict and Tuple spaces a list.
        """
        leaves = {leaf: self._to_env(leaf, rows) for leaf, rows in actions.items()}
        if len(leaves) == 1 and Columns.ACTIONS in leaves:
            return leaves[Columns.ACTIONS]
        count = len(next(iter(leaves.values())))
        return [
            unflatten({leaf: rows[row] for leaf, rows in leaves.items()}, Columns.ACTIONS, self._struct)
            for row in range(count)
        ]

    def to_module(self, leaf: str, rows: NDArray[Any]) -> NDArray[Any]:
        """The inverse: the environment's actions of a leaf as a module's.

        Args:
            leaf: of the actions.
            rows: `[B, *shape]`.

        Returns:
            `[B, *shape]` in the rows' dtype, float32 where that is not a float.
        """
        if leaf not in self._scaled:
            return rows
        dtype = rows.dtype if rows.dtype.kind == "f" else np.float32
        return self._scaled[leaf].inverse(rows).astype(dtype, copy=False)

    def _to_env(self, leaf: str, rows: NDArray[Any]) -> NDArray[Any]:
        space = self._spaces[leaf]
        if leaf in self._scaled:
            rows = self._scaled[leaf](rows)
        elif self._clip and isinstance(space, gym.spaces.Box):
            rows = np.clip(rows, space.low, space.high)
        return rows.astype(space.dtype, copy=False)


class _Scale:
    """±1 to the bounds of a box."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self._low, self._high = space.low, space.high
        self._half = (space.high - space.low) / 2

    def __call__(self, rows: NDArray[Any]) -> NDArray[Any]:
        scaled = self._low + (rows + 1) * self._half
        return np.minimum(np.maximum(scaled, self._low), self._high)

    def inverse(self, rows: NDArray[Any]) -> NDArray[Any]:
        half = np.where(self._half == 0, 1, self._half)
        return (rows - self._low) / half - (self._half != 0)


class Preprocessing:
    """Everything between an environment and its module, made from the resource and saved with the policy.

    Observations: float boxes pass the mean-std filter (`observation_filter: meanStd`), then boxes are stacked
    (`frame_stack`). The filter's statistics change by `update` only, never by acting.

    Args:
        observation_space: the environment's.
        action_space: the environment's.
        observation_filter: "none" or "meanStd".
        frame_stack: k, see `FrameStack`.
        normalize_actions: see `ActionToEnv`.
        clip_actions: see `ActionToEnv`.

    Attributes:
        observation_space: what the module sees.
        action_space: what the module puts out.
        frame_stack: k.
        filters: leaf -> its filter.
        stacked_leaves: the leaves that are stacked; none when k is 1.
        scaled_leaves: the leaves of actions that are scaled, see `ActionToEnv`.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        observation_filter: str = "none",
        frame_stack: int = 1,
        normalize_actions: bool = True,
        clip_actions: bool = False,
    ) -> None:
        options = (observation_filter, frame_stack, normalize_actions, clip_actions)
        self._options: Json = dict(zip(_OPTIONS, options, strict=True))
        self._spaces = (observation_space, action_space)
        leaves = flatten_space(observation_space, Columns.OBS)
        self._leaves = frozenset(leaves)
        self.frame_stack = frame_stack
        self.filters = {
            leaf: MeanStdFilter(space.shape)
            for leaf, space in leaves.items()
            if observation_filter == "meanStd" and is_float_box(space)
        }
        self.stacked_leaves = tuple(
            leaf
            for leaf, space in leaves.items()
            if frame_stack > 1 and isinstance(space, gym.spaces.Box) and space.shape
        )
        self._history = FrameStack(frame_stack, self.stacked_leaves)
        self._to_env = ActionToEnv(action_space, normalize_actions, clip_actions)
        self.action_space = self._to_env.module_space
        self.scaled_leaves = self._to_env.scaled_leaves
        seen = {leaf: self._seen(leaf, space) for leaf, space in leaves.items()}
        self.observation_space = space_from_struct(
            unflatten(seen, Columns.OBS, space_struct(observation_space))
        )

    @classmethod
    def from_specs(
        cls,
        observation_space: gym.Space,
        action_space: gym.Space,
        model: ModelSpec,
        environment: EnvironmentSpec | None = None,
    ) -> Self:
        """As the resource says; without an environment, by its defaults: actions normalised, not clipped."""
        return cls(
            observation_space,
            action_space,
            observation_filter=model.observation_filter,
            frame_stack=model.frame_stack,
            normalize_actions=environment is None or environment.normalize_actions,
            clip_actions=environment is not None and environment.clip_actions,
        )

    def fork(self) -> Preprocessing:
        """One with the same filters (shared) and a frame history of its own."""
        twin = Preprocessing(*self._spaces, **self._options)
        twin.filters = self.filters
        return twin

    def observe(self, obs: Any, is_first: NDArray[np.bool_] | None = None) -> Arrays:
        """What the module sees of a step of all slots, leaf -> `[B, …]`.

        Args:
            obs: raw observations: `[B, *shape]`; for composite spaces leaf -> rows, or nested like the space.
            is_first: `[B]` the slots that begin an episode with this step; only frame stacking looks at it.
                None: none of them, or, in the very first step, all.
        """
        batch = self.leaves(obs)
        if self.filters:
            batch = self.filter_obs(batch)
        return self._history(batch, is_first) if self.stacked_leaves else batch

    def leaves(self, obs: Any) -> Arrays:
        """A batch of raw observations as leaf -> rows."""
        if isinstance(obs, np.ndarray):
            return {Columns.OBS: obs}
        if isinstance(obs, dict) and obs.keys() == self._leaves:
            return obs
        return {leaf: np.asarray(rows) for leaf, rows in flatten(obs, Columns.OBS).items()}

    def filter_obs(self, obs: Mapping[str, NDArray[Any]]) -> Arrays:
        """The filtered leaves (float32), the others as they are. Rows of any number; changes no state."""
        return {
            leaf: self.filters[leaf](rows) if leaf in self.filters else rows for leaf, rows in obs.items()
        }

    def update(self, obs: Mapping[str, NDArray[Any]]) -> None:
        """Add raw observations, leaf -> `[n, *shape]`, to the filters' statistics."""
        for leaf, mean_std in self.filters.items():
            mean_std.update(obs[leaf])

    def merge(self, others: Sequence[Preprocessing]) -> None:
        """Add what the filters of others have seen."""
        for leaf, mean_std in self.filters.items():
            mean_std.merge([other.filters[leaf] for other in others])

    def reset(self) -> None:
        """Forget the slots' frames; the next step begins an episode in each."""
        self._history.reset()

    def to_env(self, actions: Mapping[str, NDArray[Any]]) -> EnvActions:
        """B environment actions from module actions; see `ActionToEnv`."""
        return self._to_env(actions)

    def to_module(self, leaf: str, rows: NDArray[Any]) -> NDArray[Any]:
        """Module actions from environment actions of a leaf; see `ActionToEnv.to_module`."""
        return self._to_env.to_module(leaf, rows)

    def state(self) -> Arrays:
        """The filters' statistics under `<leaf>/count`, `<leaf>/mean`, `<leaf>/squares`."""
        return {
            f"{leaf}/{name}": numbers
            for leaf, mean_std in self.filters.items()
            for name, numbers in mean_std.state().items()
        }

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over `state()`.

        Raises:
            KeyError: a filter's statistics are missing.
            ValueError: they are of another shape.
        """
        for leaf, mean_std in self.filters.items():
            mean_std.load({name: state[f"{leaf}/{name}"] for name in ("count", "mean", "squares")})

    def to_json(self) -> Json:
        """The options, in the resources' spelling."""
        return {to_camel(option): value for option, value in self._options.items()}

    @classmethod
    def from_json(
        cls, observation_space: gym.Space, action_space: gym.Space, options: Mapping[str, Any]
    ) -> Self:
        """The inverse of `to_json`; the spaces are the environment's.

        Raises:
            KeyError: an option is missing.
        """
        return cls(observation_space, action_space, **{each: options[to_camel(each)] for each in _OPTIONS})

    def _seen(self, leaf: str, space: gym.Space) -> gym.Space:
        if leaf in self.filters:
            space = gym.spaces.Box(-CLIP, CLIP, space.shape, np.float32)
        if leaf not in self.stacked_leaves:
            return space
        # Frames before the first are zero, whatever the bounds.
        low = np.minimum(np.concatenate([space.low] * self.frame_stack, -1), 0)
        high = np.maximum(np.concatenate([space.high] * self.frame_stack, -1), 0)
        return gym.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype)


def stack_rows(column: Tensor, rows: Tensor, first_rows: Tensor, k: int) -> Tensor:
    """`FrameStack` for recorded observations, by index: each is stored once.

    Args:
        column: `[O, *shape]` observations (filtered, if they are), on any device.
        rows: `[n]` int64, the rows wanted.
        first_rows: `[n]` int64, the first row of each one's episode.
        k: frames.

    Returns:
        `[n, *shape[:-1], k * shape[-1]]`, oldest frame first, zero before the episode's first.
    """
    wanted = rows.unsqueeze(-1) - torch.arange(k - 1, -1, -1, device=rows.device)
    known = wanted >= first_rows.unsqueeze(-1)
    frames = column[torch.where(known, wanted, rows.unsqueeze(-1))]
    frames = frames * known.reshape(*known.shape, *[1] * (column.dim() - 1))
    return frames.movedim(1, -2).flatten(-2)


def is_float_box(space: gym.Space) -> bool:
    """Whether a space is a Box of floats."""
    return isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)
