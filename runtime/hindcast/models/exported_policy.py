"""`ExportedPolicy`: a policy as one function of tensors, including preprocessing and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hindcast.episodes.batched import batch_dtype
from hindcast.episodes.columns import SEPARATOR, Columns
from hindcast.episodes.spaces import flatten_space, names_of
from hindcast.models.mean_std import CLIP, MeanStdFilter
from hindcast.models.missing_values import MissingValues
from hindcast.models.policy import Policy
from hindcast.models.recurrent import as_leaves

NOISE = "noise"
"""Name of the input that actions are sampled from."""
FRAMES_IN, FRAMES_OUT = "frames_in", "frames_out"
"""Prefixes of the stacked frames of an observation leaf, which are a state like that of a recurrent layer."""
LAST_IN, LAST_OUT = "last_in", "last_out"
"""Prefixes of the last values of an observation leaf, which replace missing ones, and are a state too."""


class Port(NamedTuple):
    """An input or output of an exported policy.

    Attributes:
        dtype: dtype of the values.
        shape: shape of one row's value, without B.
        start: value of a state before an episode's first step, `[*shape]`; None for other ports.
        next_state: name of the output with a state's next value; None for other ports.
        noise: "uniform" on [0, 1) or standard "normal" for the noise that actions are sampled from; None for others.
        names: name of each element; empty if they have none.
        fillable: `[*shape]` True for elements that may be NaN, which the policy replaces; None for none.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    start: NDArray[Any] | None = None
    next_state: str | None = None
    noise: str | None = None
    names: tuple[str, ...] = ()
    fillable: NDArray[np.bool_] | None = None


class ExportedPolicy(nn.Module):
    """A policy from raw observations to the environment's actions.

    Args:
        policy: the policy to export, on the CPU.
        explore: True to sample actions, False to take their mode.

    Attributes:
        explore: True if actions are sampled; False also for policies without noise.
        inputs: name -> port, in the order of `forward`'s arguments: observations (`obs`, or `obs/camera`), states
            (`state_in/h`, `frames_in/obs`), `prev_rewards`, the reward of the previous step, if the module sees it, and
            `noise` if actions are sampled.
        outputs: name -> port, in the order of `forward`'s results: actions (`actions`, or `actions/…`), states.
    """

    def __init__(self, policy: Policy, explore: bool = False) -> None:
        super().__init__()
        self._policy = policy.module.eval()
        head = policy.module.action_head
        self.explore = explore and head.noise_size > 0
        self._obs_leaves = tuple(flatten_space(policy.observation_space, Columns.OBS))
        self._stacked_leaves = policy.preprocessing.stacked_leaves
        self._filters = nn.ModuleDict()
        # torch allows no dots in the names of modules and buffers, but leaves may have them.
        self._filter_names = {leaf: f"leaf{index}" for index, leaf in enumerate(policy.preprocessing.filters)}
        spaces = flatten_space(policy.observation_space, Columns.OBS)
        for leaf, mean_std in policy.preprocessing.filters.items():
            self._filters[self._filter_names[leaf]] = _Filter(mean_std, _input_dtype(spaces[leaf]))
        self._to_env = _ActionsToEnv(policy)
        preprocessing = policy.preprocessing
        self._missing = nn.ModuleDict()
        self._missing_names = {leaf: f"leaf{index}" for index, leaf in enumerate(preprocessing.missing)}
        for leaf, rules in preprocessing.missing.items():
            dtype = _input_dtype(spaces[leaf])
            self._missing[self._missing_names[leaf]] = _Missing(rules, dtype)
        self._appends_flags = preprocessing.missing_indicators
        self.inputs = {
            leaf: Port(
                _input_dtype(space),
                space.shape or (),
                names=names_of(space),
                fillable=preprocessing.fillable.get(leaf),
            )
            for leaf, space in spaces.items()
        }
        for leaf, rules in preprocessing.missing.items():
            if rules.is_carried.any():
                fills = rules.fills.astype(_input_dtype(spaces[leaf]))
                self.inputs[_join(LAST_IN, leaf)] = _state_port(fills, _join(LAST_OUT, leaf))
        for leaf in self._stacked_leaves:
            frames = flatten_space(policy.preprocessing.observation_space, Columns.OBS)[leaf]
            dtype = np.dtype(np.float32) if leaf in self._filter_names else _input_dtype(spaces[leaf])
            zeros = np.zeros(frames.shape or (), dtype)
            self.inputs[_join(FRAMES_IN, leaf)] = _state_port(zeros, _join(FRAMES_OUT, leaf))
        for name, start in policy.module.get_initial_state().items():
            output = _join(Columns.STATE_OUT, name)
            self.inputs[_join(Columns.STATE_IN, name)] = _state_port(start.detach().numpy(), output)
        if policy.module.sees_rewards:
            self.inputs[Columns.PREV_REWARDS] = Port(np.dtype(np.float32), ())
        if self.explore:
            self.inputs[NOISE] = Port(np.dtype(np.float32), (head.noise_size,), noise=head.noise_kind)
        self.outputs = dict(self._to_env.ports)
        for port in self.inputs.values():
            if port.next_state is not None:
                self.outputs[port.next_state] = Port(port.dtype, port.shape)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Act for one step; each input and output is `[B, *shape]`."""
        inputs = dict(zip(self.inputs, values, strict=True))
        noise = inputs.pop(NOISE, None)
        states_and_rewards = {leaf: value for leaf, value in inputs.items() if leaf not in self._obs_leaves}
        observations = {leaf: inputs[leaf] for leaf in self._obs_leaves}
        last_values: dict[str, Tensor] = {}
        flags: dict[str, Tensor] = {}
        for leaf, name in self._missing_names.items():
            last = inputs.get(_join(LAST_IN, leaf))
            observations[leaf], last_values[_join(LAST_OUT, leaf)], flags[leaf] = self._missing[name](
                observations[leaf], last
            )
        for leaf, name in self._filter_names.items():
            observations[leaf] = self._filters[name](observations[leaf])
        for leaf in self._missing_names if self._appends_flags else ():
            rows = (
                observations[leaf].flatten(1) if observations[leaf].dim() > 1 else observations[leaf][:, None]
            )
            observations[leaf] = torch.cat([rows, flags[leaf].to(rows.dtype)], 1)
        for leaf in self._stacked_leaves:
            history, width = inputs[_join(FRAMES_IN, leaf)], observations[leaf].shape[-1]
            observations[leaf] = torch.cat([history[..., width:], observations[leaf]], -1)
        # Filters take float64 observations as they are; the module computes in float32.
        forward = self._policy.forward_inference if noise is None else self._policy.forward_exploration
        outputs = forward(
            states_and_rewards
            | {
                leaf: rows.float() if rows.dtype == torch.float64 else rows
                for leaf, rows in observations.items()
            }
        )
        distribution = self._policy.distribution(outputs[Columns.ACTION_DIST_INPUTS])
        action = distribution.mode() if noise is None else distribution.sample(noise)
        actions = {Columns.ACTIONS: action} if isinstance(action, Tensor) else dict(action)
        next_state = self._policy.state_after(outputs, actions, noise)
        results = {**self._to_env(actions), **outputs, **as_leaves(Columns.STATE_OUT, next_state)}
        results |= last_values
        results |= {_join(FRAMES_OUT, leaf): observations[leaf] for leaf in self._stacked_leaves}
        return tuple(results[name] for name in self.outputs)


class _Missing(nn.Module):
    """`MissingValues` on tensors."""

    fills: Tensor
    has_rule: Tensor
    is_carried: Tensor
    indices: Tensor

    def __init__(self, rules: MissingValues, dtype: np.dtype) -> None:
        super().__init__()
        self.register_buffer("fills", torch.from_numpy(rules.fills.astype(dtype)))
        self.register_buffer("has_rule", torch.from_numpy(rules.has_rule))
        self.register_buffer("is_carried", torch.from_numpy(rules.is_carried))
        self.register_buffer("indices", torch.from_numpy(rules.indices))

    def forward(self, rows: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows without missing values, the last values, and `[B, k]` True for missing elements."""
        is_missing = torch.isnan(rows)
        filled = torch.where(is_missing & self.has_rule, self.fills if last is None else last, rows)
        flat = is_missing.flatten(1) if is_missing.dim() > 1 else is_missing[:, None]
        return filled, torch.where(self.is_carried, filled, self.fills), flat[:, self.indices]


class _Filter(nn.Module):
    """`MeanStdFilter` on tensors."""

    shift: Tensor
    scale: Tensor

    def __init__(self, mean_std: MeanStdFilter, dtype: np.dtype) -> None:
        super().__init__()
        shift = mean_std.mean.astype(np.float32 if dtype == np.float32 else np.float64)
        self.register_buffer("shift", torch.from_numpy(shift))
        self.register_buffer("scale", torch.from_numpy(np.asarray(1.0 / mean_std.std, np.float32)))

    def forward(self, rows: Tensor) -> Tensor:
        return ((rows - self.shift).float() * self.scale).clamp(-CLIP, CLIP)


class _ActionsToEnv(nn.Module):
    """`ActionToEnv` on tensors."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        options = policy.preprocessing.to_json()
        self._spaces = flatten_space(policy.action_space, Columns.ACTIONS)
        self._scaled_leaves = policy.preprocessing.scaled_leaves
        self._clips_actions = bool(options["clipActions"])
        self._buffer_names = {leaf: f"leaf{index}" for index, leaf in enumerate(self._spaces)}
        self.ports = {
            leaf: Port(_output_dtype(space), space.shape or ()) for leaf, space in self._spaces.items()
        }
        for leaf, space in self._spaces.items():
            if isinstance(space, gym.spaces.Box):
                for name, bound in (("low", space.low), ("high", space.high)):
                    self.register_buffer(
                        f"{name}_{self._buffer_names[leaf]}", torch.from_numpy(np.array(bound))
                    )

    def forward(self, actions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {leaf: self._leaf_to_env(leaf, rows) for leaf, rows in actions.items()}

    def _leaf_to_env(self, leaf: str, rows: Tensor) -> Tensor:
        dtype = _torch_dtype(self.ports[leaf].dtype)
        if not isinstance(self._spaces[leaf], gym.spaces.Box) or not (
            leaf in self._scaled_leaves or self._clips_actions
        ):
            return rows.to(dtype)
        low, high = (getattr(self, f"{name}_{self._buffer_names[leaf]}") for name in ("low", "high"))
        if leaf in self._scaled_leaves:
            rows = low + (rows + 1) * ((high - low) / 2)
        return torch.minimum(torch.maximum(rows.to(low.dtype), low), high).to(dtype)


def _state_port(start: NDArray[Any], next_state: str) -> Port:
    return Port(start.dtype, start.shape, start, next_state)


def _join(root: str, name: str) -> str:
    return root + SEPARATOR + name


def _input_dtype(space: gym.Space) -> np.dtype:
    """Return the dtype of a raw observation: the space's if float32 or float64, otherwise one that torch supports."""
    dtype = np.dtype(space.dtype or np.int64)
    return dtype if dtype in (np.float32, np.float64) else batch_dtype(dtype)


def _output_dtype(space: gym.Space) -> np.dtype:
    """Return the dtype of an environment action: the space's for floats, otherwise one that torch supports."""
    dtype = np.dtype(space.dtype or np.int64)
    return dtype if dtype.kind == "f" else batch_dtype(dtype)


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
