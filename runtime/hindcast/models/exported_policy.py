"""`ExportedPolicy`: a policy as one function of tensors, preprocessing and state included."""

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
from hindcast.episodes.spaces import flatten_space
from hindcast.models.mean_std import CLIP, MeanStdFilter
from hindcast.models.policy import Policy
from hindcast.models.recurrent import as_leaves

FRAMES_IN, FRAMES_OUT = "frames_in", "frames_out"
"""Under them stand the stacked frames of an observation leaf: a state, as the recurrent one is."""


class Port(NamedTuple):
    """An input or output.

    Attributes:
        dtype: of its values.
        shape: of one row.
        start: `[*shape]` of a state, its value before an episode's first step; None where it is not a state.
        follows: the output that is this state's next value; None where it is not a state.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    start: NDArray[Any] | None = None
    next_state: str | None = None


class ExportedPolicy(nn.Module):
    """A policy that acts greedily, from raw observations to the environment's actions.

    Args:
        policy: on the CPU.

    Attributes:
        inputs: name -> port, in the order of `forward`'s arguments: observations (`obs`, or `obs/camera`), states
            (`state_in/h`, `frames/obs`), and `prev_rewards`, the reward of the step before, where the module sees it.
        outputs: name -> port, in the order of its results: actions (`actions`, or `actions/…`), states.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy.module.eval()
        self._seen = tuple(flatten_space(policy.observation_space, Columns.OBS))
        self._stacked = policy.preprocessing.stacked_leaves
        self._filters = nn.ModuleDict()
        self._names = {leaf: f"leaf{number}" for number, leaf in enumerate(policy.preprocessing.filters)}
        spaces = flatten_space(policy.observation_space, Columns.OBS)
        for leaf, mean_std in policy.preprocessing.filters.items():
            self._filters[self._names[leaf]] = _Filter(mean_std, _taken(spaces[leaf]))
        self._to_env = _ActionsToEnv(policy)
        self.inputs = {leaf: Port(_taken(space), space.shape or ()) for leaf, space in spaces.items()}
        for leaf in self._stacked:
            frames = flatten_space(policy.preprocessing.observation_space, Columns.OBS)[leaf]
            dtype = np.dtype(np.float32) if leaf in self._names else _taken(spaces[leaf])
            none_yet = np.zeros(frames.shape or (), dtype)
            self.inputs[_under(FRAMES_IN, leaf)] = _state(none_yet, _under(FRAMES_OUT, leaf))
        for name, start in policy.module.get_initial_state().items():
            later = _under(Columns.STATE_OUT, name)
            self.inputs[_under(Columns.STATE_IN, name)] = _state(start.detach().numpy(), later)
        if policy.module.sees_rewards:
            self.inputs[Columns.PREV_REWARDS] = Port(np.dtype(np.float32), ())
        self.outputs = dict(self._to_env.ports)
        for port in self.inputs.values():
            if port.next_state is not None:
                self.outputs[port.next_state] = Port(port.dtype, port.shape)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """One step: `[B, *shape]` of each input, and of each output."""
        given = dict(zip(self.inputs, values, strict=True))
        states = {leaf: value for leaf, value in given.items() if leaf not in self._seen}
        seen = {leaf: given[leaf] for leaf in self._seen}
        for leaf, name in self._names.items():
            seen[leaf] = self._filters[name](seen[leaf])
        for leaf in self._stacked:
            history, width = given[_under(FRAMES_IN, leaf)], seen[leaf].shape[-1]
            seen[leaf] = torch.cat([history[..., width:], seen[leaf]], -1)
        outputs = self._policy.forward_inference(
            states
            | {leaf: rows.float() if rows.dtype == torch.float64 else rows for leaf, rows in seen.items()}
        )
        chosen = self._policy.distribution(outputs[Columns.ACTION_DIST_INPUTS]).mode()
        actions = {Columns.ACTIONS: chosen} if isinstance(chosen, Tensor) else dict(chosen)
        later = self._policy.state_after(outputs, actions, None)
        found = {**self._to_env(actions), **outputs, **as_leaves(Columns.STATE_OUT, later)}
        found |= {_under(FRAMES_OUT, leaf): seen[leaf] for leaf in self._stacked}
        return tuple(found[name] for name in self.outputs)


class _Filter(nn.Module):
    """`MeanStdFilter` on tensors."""

    shift: Tensor
    scale: Tensor

    def __init__(self, mean_std: MeanStdFilter, dtype: np.dtype) -> None:
        super().__init__()
        shift = mean_std.mean.astype(np.float32 if dtype == np.float32 else np.float64)
        self.register_buffer("shift", torch.from_numpy(shift))
        self.register_buffer("scale", torch.from_numpy((1.0 / mean_std.std).astype(np.float32)))

    def forward(self, rows: Tensor) -> Tensor:
        return ((rows - self.shift).float() * self.scale).clamp(-CLIP, CLIP)


class _ActionsToEnv(nn.Module):
    """`ActionToEnv` on tensors."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        options = policy.preprocessing.to_json()
        self._spaces = flatten_space(policy.action_space, Columns.ACTIONS)
        self._scaled = policy.preprocessing.scaled_leaves
        self._clips = bool(options["clipActions"])
        self._names = {leaf: f"leaf{number}" for number, leaf in enumerate(self._spaces)}
        self.ports = {leaf: Port(_given(space), space.shape or ()) for leaf, space in self._spaces.items()}
        for leaf, space in self._spaces.items():
            if isinstance(space, gym.spaces.Box):
                for name, bound in (("low", space.low), ("high", space.high)):
                    self.register_buffer(f"{name}_{self._names[leaf]}", torch.from_numpy(np.array(bound)))

    def forward(self, actions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {leaf: self._one(leaf, rows) for leaf, rows in actions.items()}

    def _one(self, leaf: str, rows: Tensor) -> Tensor:
        dtype = _torch(self.ports[leaf].dtype)
        if not isinstance(self._spaces[leaf], gym.spaces.Box) or not (leaf in self._scaled or self._clips):
            return rows.to(dtype)
        low, high = (getattr(self, f"{name}_{self._names[leaf]}") for name in ("low", "high"))
        if leaf in self._scaled:
            rows = low + (rows + 1) * ((high - low) / 2)
        return torch.minimum(torch.maximum(rows.to(low.dtype), low), high).to(dtype)


def _state(start: NDArray[Any], follows: str) -> Port:
    return Port(start.dtype, start.shape, start, follows)


def _under(root: str, name: str) -> str:
    return root + SEPARATOR + name


def _taken(space: gym.Space) -> np.dtype:
    """The dtype of a raw observation: its own where tensors have it, else one that holds it."""
    dtype = np.dtype(space.dtype or np.int64)
    return dtype if dtype in (np.float32, np.float64) else batch_dtype(dtype)


def _given(space: gym.Space) -> np.dtype:
    dtype = np.dtype(space.dtype or np.int64)
    return dtype if dtype.kind == "f" else batch_dtype(dtype)


def _torch(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
