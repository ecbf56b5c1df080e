"""`Preprocessing` between an environment and a module: missing values, observation filter, frame stack, actions.

Recordings contain the environment's raw observations and the module's raw actions, so that acting and training use the
same `Preprocessing`; it is saved with the policy. Shape suffix: B = rows; in acting, row i is slot i.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.alias_generators import to_camel
from torch import Tensor

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.input import MissingRule
from hindcast.api.model import ModelSpec
from hindcast.api.spelling import IN_PYTHON
from hindcast.api.training import RewardsSpec
from hindcast.episodes.block import Block
from hindcast.episodes.columns import MASK_LEAF, Columns, leaves_of
from hindcast.episodes.nested import flatten, unflatten
from hindcast.episodes.spaces import flatten_space, space_from_struct, space_struct
from hindcast.errors import SpecError
from hindcast.models.mean_std import CLIP, MeanStdFilter
from hindcast.models.missing_values import MissingValues, SlotValues, resolve_rules
from hindcast.models.reward_scale import RewardScale

Arrays = dict[str, NDArray[Any]]
Json = dict[str, Any]
# Item i is the action of slot i: an array, or a list for composite spaces.
EnvActions = NDArray[Any] | list[Any]

_OPTIONS = ("observation_filter", "frame_stack", "normalize_actions", "clip_actions")
"""Options of `Preprocessing`, in the order of its arguments."""
_MISSING_OPTIONS = ("missing", "missing_indicators")
"""Options that are written only if they are set, so that policies without them keep their bytes and digest."""


class FrameStack:
    """The last k observations of each slot, concatenated on the last axis, oldest first.

    `[B, 84, 84, 1]` becomes `[B, 84, 84, k]`, `[B, 4]` becomes `[B, 4 k]`. Frames before an episode's first one are
    zero, as in RLlib.

    Args:
        k: number of frames.
        leaves: names of the leaves to stack; the others stay unchanged.
    """

    def __init__(self, k: int, leaves: Sequence[str]) -> None:
        self._k = k
        self._leaves = frozenset(leaves)
        self._history: Arrays = {}

    def __call__(self, batch: Mapping[str, NDArray[Any]], is_first: NDArray[np.bool_] | None) -> Arrays:
        """Add a step of every slot; return the stacked observations, leaf -> `[B, ...]`.

        Slots in `is_first` `[B]` begin an episode. If it is None, no slot does, or, in the very first step, all slots.

        Raises:
            ValueError: the number of slots differs from the previous step's, and not all begin an episode.
        """
        self._history = {name: self._stack_leaf(name, rows, is_first) for name, rows in batch.items()}
        return self._history

    def reset(self) -> None:
        """Discard the frames of all slots."""
        self._history = {}

    def _stack_leaf(self, name: str, rows: NDArray[Any], is_first: NDArray[np.bool_] | None) -> NDArray[Any]:
        if name not in self._leaves:
            return rows
        width = rows.shape[-1]
        old_frames = self._history.get(name)
        if old_frames is None or (is_first is not None and is_first.all()):
            old_frames = np.zeros((*rows.shape[:-1], self._k * width), dtype=rows.dtype)
        elif len(old_frames) != len(rows):
            raise ValueError(
                f"the observations have {len(rows)} slots, but the frame stack has {len(old_frames)}; begin an episode "
                "in every slot (is_first)"
            )
        frames = np.concatenate([old_frames[..., width:], rows], -1)
        if is_first is not None and is_first.any():
            # The older frames belong to the slot's previous episode.
            frames[is_first, ..., :-width] = 0
        return frames


class ActionToEnv:
    """Converts module actions to environment actions.

    With `normalize_actions`, the module acts within ±1 in bounded float boxes; its actions are scaled to the bounds and
    clipped to them. With `clip_actions`, actions in other boxes are clipped to their bounds. Discrete actions pass
    unchanged.

    Args:
        action_space: the environment's action space.
        normalize_actions: see above.
        clip_actions: see above.

    Attributes:
        module_space: the module's action space.
        scaled_leaves: the leaves that are scaled.
        log_scale: logarithm of the environment volume per unit of module volume, 0.0 if nothing is scaled. The
            log-density of module actions is that of the environment actions plus this number.
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
        self.log_scale = sum((scale.log_volume for scale in self._scaled.values()), 0.0)
        self._clip = clip_actions
        unit_boxes = {
            leaf: gym.spaces.Box(-1.0, 1.0, self._spaces[leaf].shape, np.float32) for leaf in self._scaled
        }
        self.module_space = space_from_struct(
            unflatten({**self._spaces, **unit_boxes}, Columns.ACTIONS, self._struct)
        )

    def __call__(self, actions: Mapping[str, NDArray[Any]]) -> EnvActions:
        """Return B environment actions: item i is the action of row i.

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
        """Convert a leaf's environment actions to module actions; the inverse of `__call__`.

        Args:
            leaf: leaf of the actions.
            rows: `[B, *shape]`.

        Returns:
            `[B, *shape]` in the rows' dtype, or float32 if their dtype is not a float.
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
    """Scales values within ±1 to the bounds of a box."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self._low, self._high = space.low, space.high
        self._half = (space.high - space.low) / 2
        # An element with equal bounds has no density.
        self.log_volume = float(np.log(self._half[self._half > 0].astype(np.float64)).sum())

    def __call__(self, rows: NDArray[Any]) -> NDArray[Any]:
        actions = self._low + (rows + 1) * self._half
        return np.minimum(np.maximum(actions, self._low), self._high)

    def inverse(self, rows: NDArray[Any]) -> NDArray[Any]:
        # Elements with equal bounds map to 0.
        half_range = np.where(self._half == 0, 1, self._half)
        return (rows - self._low) / half_range - (self._half != 0)


class Preprocessing:
    """Everything between an environment and its module; built from the resource and saved with the policy.

    Missing values (NaN) of float boxes of observations are replaced (`missing`), the boxes pass the mean-std filter
    (`observation_filter: meanStd`), indicators of missing values are appended to them (`missing_indicators`), and the
    frames of boxes are stacked (`frame_stack`). Statistics change only by `fit` and `update`, never by acting.

    Args:
        observation_space: the environment's observation space.
        action_space: the environment's action space.
        observation_filter: "none" or "meanStd".
        frame_stack: k, see `FrameStack`.
        normalize_actions: see `ActionToEnv`.
        clip_actions: see `ActionToEnv`.
        missing: what replaces missing values, see `resolve_rules`.
        missing_indicators: whether the module sees which values with a rule were missing.
        rewards: changes of rewards, which only training sees; None for none.

    Attributes:
        observation_space: space of the module's inputs.
        action_space: space of the module's actions.
        frame_stack: number of stacked frames, k.
        filters: leaf -> filter of its rows.
        missing: leaf -> what replaces its missing values; leaves without a rule are left out.
        missing_indicators: whether the module sees which values were missing.
        stacked_leaves: the leaves that are stacked; none if k is 1.
        scaled_leaves: the leaves of actions that are scaled, see `ActionToEnv`.
        reward_scale: changes rewards; None without `rewards`.
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
        missing: Mapping[str, MissingRule] = MappingProxyType({}),
        missing_indicators: bool = False,
        rewards: RewardsSpec | None = None,
    ) -> None:
        options = (observation_filter, frame_stack, normalize_actions, clip_actions)
        self._options: Json = dict(zip(_OPTIONS, options, strict=True))
        if missing:
            self._options |= {"missing": dict(missing), "missing_indicators": missing_indicators}
        self.reward_scale = None if rewards is None else RewardScale(rewards)
        self._spaces = (observation_space, action_space)
        leaves = flatten_space(observation_space, Columns.OBS)
        self._leaves = frozenset(leaves)
        self.frame_stack = frame_stack
        self.missing: dict[str, MissingValues] = (
            resolve_rules(missing, {leaf: space for leaf, space in leaves.items() if leaf != MASK_LEAF})
            if missing
            else {}
        )
        self.missing_indicators = missing_indicators and bool(self.missing)
        self._slot_values = {leaf: SlotValues(rules) for leaf, rules in self.missing.items()}
        self.filters = {
            leaf: MeanStdFilter(space.shape)
            for leaf, space in leaves.items()
            if observation_filter == "meanStd" and is_float_box(space) and leaf != MASK_LEAF
        }
        self.stacked_leaves = tuple(
            leaf
            for leaf, space in leaves.items()
            if frame_stack > 1
            and leaf != MASK_LEAF
            and isinstance(space, gym.spaces.Box)
            and self._shape_with_indicators(leaf, space)
        )
        self._history = FrameStack(frame_stack, self.stacked_leaves)
        self._to_env = ActionToEnv(action_space, normalize_actions, clip_actions)
        self.action_space = self._to_env.module_space
        self.scaled_leaves = self._to_env.scaled_leaves
        module_spaces = {leaf: self._module_leaf_space(leaf, space) for leaf, space in leaves.items()}
        self.observation_space = space_from_struct(
            unflatten(module_spaces, Columns.OBS, space_struct(observation_space))
        )

    @classmethod
    def from_specs(
        cls,
        observation_space: gym.Space,
        action_space: gym.Space,
        model: ModelSpec,
        environment: EnvironmentSpec | None = None,
        *,
        rewards: RewardsSpec | None = None,
        missing: Mapping[str, MissingRule] = MappingProxyType({}),
        missing_indicators: bool = False,
    ) -> Self:
        """Build the preprocessing of a resource.

        Without an environment, actions are normalised but not clipped, as with the defaults of `EnvironmentSpec`.

        Raises:
            SpecError: a rule of `missing` names no element of the observations, or there are indicators without rules.
        """
        if missing_indicators and not missing:
            raise SpecError(
                "is true, but missing has no rule: name columns there, or leave it out",
                field="spec.input.prepare.missingIndicators",
            )
        return cls(
            observation_space,
            action_space,
            observation_filter=model.observation_filter,
            frame_stack=model.frame_stack,
            normalize_actions=environment is None or environment.normalize_actions,
            clip_actions=environment is not None and environment.clip_actions,
            missing=missing,
            missing_indicators=missing_indicators,
            rewards=rewards,
        )

    @property
    def needs_reward_statistics(self) -> bool:
        """True if the change of rewards is fitted to data."""
        return self.reward_scale is not None and self.reward_scale.spec.normalize != "none"

    def fork(self) -> Preprocessing:
        """Return a copy that shares the statistics but has its own history of frames and values."""
        copy = Preprocessing(*self._spaces, **self._options)
        copy.filters, copy.reward_scale, copy.missing = self.filters, self.reward_scale, self.missing
        copy._slot_values = {leaf: SlotValues(rules) for leaf, rules in self.missing.items()}
        return copy

    def without_reward_scale(self) -> Preprocessing:
        """Return a copy that leaves rewards as recorded, for estimates of the return."""
        copy = self.fork()
        copy.reward_scale = None
        return copy

    def observe(self, obs: Any, is_first: NDArray[np.bool_] | None = None) -> Arrays:
        """Preprocess the observations of a step of all slots: leaf -> `[B, …]`.

        Args:
            obs: raw observations: `[B, *shape]`; for composite spaces leaf -> rows, or nested like the space.
            is_first: `[B]` the slots that begin an episode with this step, for frames and for values that are carried
                forward. None: no slot does, or, in the very first step, all slots.
        """
        batch = self.leaves(obs)
        if self.filters or self.missing:
            filled = {leaf: values.fill(batch[leaf], is_first) for leaf, values in self._slot_values.items()}
            batch = self._to_module_rows(batch, filled)
        return self._history(batch, is_first) if self.stacked_leaves else batch

    def leaves(self, obs: Any) -> Arrays:
        """Return a batch of raw observations as leaf -> rows."""
        if isinstance(obs, np.ndarray):
            return {Columns.OBS: obs}
        if isinstance(obs, dict) and obs.keys() == self._leaves:
            return obs
        return {leaf: np.asarray(rows) for leaf, rows in flatten(obs, Columns.OBS).items()}

    def process_episodes(self, obs: Mapping[str, NDArray[Any]], obs_start: NDArray[np.int64]) -> Arrays:
        """Fill and filter the observations of whole episodes, without stacking frames; changes no state.

        Args:
            obs: leaf -> `[O, *shape]`, episode after episode.
            obs_start: `[N]` the first row of each episode.

        Returns:
            leaf -> `[O, …]`: filtered leaves as float32.
        """
        filled = {
            leaf: rules.fill_episodes(obs[leaf], obs_start)
            for leaf, rules in self.missing.items()
            if leaf in obs
        }
        return self._to_module_rows(obs, filled)

    def _to_module_rows(self, obs: Mapping[str, NDArray[Any]], filled: Mapping[str, NDArray[Any]]) -> Arrays:
        """Filter rows, and append indicators; leaves in `filled` have their missing values replaced there."""
        module_rows: Arrays = {}
        for leaf, rows in obs.items():
            result = filled.get(leaf, rows)
            if leaf in self.filters:
                result = self.filters[leaf](result)
            if self.missing_indicators and leaf in self.missing:
                flags = self.missing[leaf].flags(rows)
                result = np.concatenate([result.reshape(len(rows), -1), flags], axis=1, dtype=result.dtype)
            module_rows[leaf] = result
        return module_rows

    def fit(self, blocks: Iterable[Block], *, rewards_only: bool = False) -> None:
        """Compute all statistics from blocks of the training data, with raw observations and rewards.

        Args:
            blocks: consumed only if there is something to compute.
            rewards_only: the observations' statistics are those of another policy.

        Raises:
            DataError: a value that must be replaced has no value in the data.
        """
        fitted_rules = {leaf: rules for leaf, rules in self.missing.items() if rules.needs_fit}
        fits_observations = bool(self.filters or fitted_rules) and not rewards_only
        reward_scale = self.reward_scale if self.needs_reward_statistics else None
        if not fits_observations and reward_scale is None:
            return
        rows: dict[str, list[NDArray[Any]]] = {leaf: [] for leaf in fitted_rules}
        for block in blocks:
            if reward_scale is not None and Columns.REWARDS in block.columns:
                reward_scale.update(block.columns[Columns.REWARDS], block.start)
            if not fits_observations:
                continue
            leaves = leaves_of(Columns.OBS, block.columns)
            # Final observations are left out: no policy acts on them, and those of some data are not recorded.
            observations = {leaf: block.columns[leaf][block.obs_row] for leaf in leaves}
            self.update(observations)
            for leaf, leaf_rows in rows.items():
                leaf_rows.append(observations[leaf])
        for leaf, rules in fitted_rules.items() if fits_observations else ():
            rules.fit(np.concatenate(rows[leaf]))

    def update(self, obs: Mapping[str, NDArray[Any]]) -> None:
        """Add raw observations, leaf -> `[n, *shape]`, to the filters' statistics."""
        for leaf, mean_std in self.filters.items():
            mean_std.update(obs[leaf])

    def merge(self, others: Sequence[Preprocessing]) -> None:
        """Add the statistics of other preprocessings' filters."""
        for leaf, mean_std in self.filters.items():
            mean_std.merge([preprocessing.filters[leaf] for preprocessing in others])

    @property
    def carries_forward(self) -> bool:
        """True if acting depends on earlier observations of the episode, because missing values are carried forward."""
        return any(rules.is_carried.any() for rules in self.missing.values())

    @property
    def fillable(self) -> dict[str, NDArray[np.bool_]]:
        """Leaf -> `[*shape]` True for elements that are replaced where they are missing."""
        return {leaf: rules.has_rule for leaf, rules in self.missing.items()}

    def reset(self) -> None:
        """Discard the slots' frames and values; the next step begins an episode in every slot."""
        self._history.reset()
        for values in self._slot_values.values():
            values.reset()

    def to_env(self, actions: Mapping[str, NDArray[Any]]) -> EnvActions:
        """Convert module actions to B environment actions; see `ActionToEnv`."""
        return self._to_env(actions)

    def to_module(self, leaf: str, rows: NDArray[Any]) -> NDArray[Any]:
        """Convert a leaf's environment actions to module actions; see `ActionToEnv.to_module`."""
        return self._to_env.to_module(leaf, rows)

    def to_module_logp(self, logp: NDArray[Any]) -> NDArray[Any]:
        """Convert log-probabilities `[B]` of environment actions to those of the same actions in module units."""
        return (logp + self._to_env.log_scale).astype(logp.dtype, copy=False)

    def state(self) -> Arrays:
        """Return the statistics as `<leaf>/<name>`, such as `obs/count`; those of rewards as `rewards/<name>`."""
        parts: dict[str, MeanStdFilter | RewardScale] = dict(self.filters)
        if self.reward_scale is not None:
            parts[Columns.REWARDS] = self.reward_scale
        state = {
            f"{leaf}/{name}": values for leaf, part in parts.items() for name, values in part.state().items()
        }
        return state | {f"{leaf}/fills": rules.fills.copy() for leaf, rules in self.missing.items()}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore `state()`.

        Raises:
            KeyError: a filter's statistics are missing.
            ValueError: a filter's statistics have another shape.
        """
        for leaf, mean_std in self.filters.items():
            mean_std.load({name: state[f"{leaf}/{name}"] for name in ("count", "mean", "squares")})
        for leaf, rules in self.missing.items():
            rules.fills = state[f"{leaf}/fills"].reshape(rules.fills.shape)
        # A warm start loads a policy that may have been trained on other rewards, and fits them anew.
        if self.reward_scale is not None and f"{Columns.REWARDS}/returns" in state:
            names = ("count", "mean", "squares", "returns")
            self.reward_scale.load({name: state[f"{Columns.REWARDS}/{name}"] for name in names})

    def to_json(self) -> Json:
        """Return the options in the spelling of resources."""
        options = {to_camel(option): value for option, value in self._options.items()}
        if self.reward_scale is None:  # policies without changed rewards keep their bytes
            return options
        return options | {
            "rewards": self.reward_scale.spec.model_dump(mode="json", by_alias=True, context=IN_PYTHON)
        }

    @classmethod
    def from_json(
        cls, observation_space: gym.Space, action_space: gym.Space, options: Mapping[str, Any]
    ) -> Self:
        """Build the preprocessing from the options that `to_json` returned; the spaces are the environment's.

        Raises:
            KeyError: an option is missing.
        """
        rewards = options.get("rewards")
        return cls(
            observation_space,
            action_space,
            **{option: options[to_camel(option)] for option in _OPTIONS},
            **{
                option: options[to_camel(option)]
                for option in _MISSING_OPTIONS
                if to_camel(option) in options
            },
            rewards=None if rewards is None else RewardsSpec.model_validate(rewards),
        )

    def _shape_with_indicators(self, leaf: str, space: gym.Space) -> tuple[int, ...] | None:
        shape = space.shape  # None for text
        if not self.missing_indicators or leaf not in self.missing:
            return shape
        return (int(np.prod(shape)) + len(self.missing[leaf].indices),)

    def _module_leaf_space(self, leaf: str, space: gym.Space) -> gym.Space:
        if leaf in self.filters:
            space = gym.spaces.Box(-CLIP, CLIP, space.shape, np.float32)
        shape = self._shape_with_indicators(leaf, space)
        if shape != space.shape:
            num_flags = len(self.missing[leaf].indices)
            low = np.append(space.low.ravel(), np.zeros(num_flags, space.dtype))
            high = np.append(space.high.ravel(), np.ones(num_flags, space.dtype))
            space = gym.spaces.Box(low, high, dtype=space.dtype.type)
        if leaf not in self.stacked_leaves:
            return space
        # Frames before an episode's first one are zero, even if the bounds exclude 0.
        low = np.minimum(np.concatenate([space.low] * self.frame_stack, -1), 0)
        high = np.maximum(np.concatenate([space.high] * self.frame_stack, -1), 0)
        return gym.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype)


def stack_rows(column: Tensor, rows: Tensor, first_rows: Tensor, k: int) -> Tensor:
    """Stack frames of recorded observations by index, like `FrameStack`; each observation is stored once.

    Args:
        column: `[O, *shape]`: all O stored observations, filtered if there is a filter, on any device.
        rows: `[n]` int64, the rows of `column` to stack.
        first_rows: `[n]` int64, the first row of each row's episode.
        k: number of frames.

    Returns:
        `[n, *shape[:-1], k * shape[-1]]`, oldest frame first, zero before the episode's first frame.
    """
    frame_rows = rows.unsqueeze(-1) - torch.arange(k - 1, -1, -1, device=rows.device)
    is_in_episode = frame_rows >= first_rows.unsqueeze(-1)
    frames = column[torch.where(is_in_episode, frame_rows, rows.unsqueeze(-1))]
    frames = frames * is_in_episode.reshape(*is_in_episode.shape, *[1] * (column.dim() - 1))
    return frames.movedim(1, -2).flatten(-2)


def is_float_box(space: gym.Space) -> bool:
    """Return True if a space is a Box of floats."""
    return isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)
