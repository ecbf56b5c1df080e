"""Comparison of a policy's actions with the recorded ones: their frequencies, and the states in which they differ.

Shapes: S = steps of a window, B = batch, E = elements of an action, K = values or ranges of an element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.columns import Columns, leaves_of
from hindcast.episodes.spaces import NamedBox, flatten_space
from hindcast.evaluate.intervals import F64
from hindcast.evaluate.recorded_episodes import map_steps
from hindcast.evaluate.target_policy import Batch, TargetPolicy, sample_noise
from hindcast.formatting import significant
from hindcast.models.policy import Policy
from hindcast.pipeline.window import WindowData

_MAX_STEPS: Final = 200_000
_MAX_ELEMENTS: Final = 8
"""Number of action elements that are compared: the first ones."""
_MAX_FEATURES: Final = 256
"""Largest number of elements of an observation leaf that is searched for states: images have more."""
_MAX_VALUES: Final = 12
"""Number of values of a discrete element that are counted separately; rarer values are counted together."""
_NUM_RANGES: Final = 10
_MAX_STATES: Final = 5
_MIN_STATE_STEPS: Final = 50


@dataclass(frozen=True)
class ActionElement:
    """The frequency of the values of one action element.

    Attributes:
        name: name of the element: `action`, `grip`, `action[1]`.
        is_discrete: True if the element takes integers, False if its values are counted by ranges.
        values: `[K]` integers and "other", or ranges such as "0.2 to 0.4".
        recorded: `[K]` share of the timesteps in which the value was recorded.
        policy: `[K]` share of the timesteps in which the policy takes the value.
        recorded_mean: mean of the recorded values.
        policy_mean: mean of the policy's values.
    """

    name: str
    is_discrete: bool
    values: tuple[str, ...]
    recorded: tuple[float, ...]
    policy: tuple[float, ...]
    recorded_mean: float
    policy_mean: float


@dataclass(frozen=True)
class StateDifference:
    """States in which the policy differs more from the recorded actions than it does over all states.

    Attributes:
        state: the states: "heart_rate above 112".
        timesteps: number of timesteps in these states.
        element: name of the action element that differs most.
        value: its value whose share differs most; None for a continuous element.
        recorded: share of the timesteps in which this value was recorded; the recorded mean of a continuous element.
        policy: the same for the policy.
        difference: share of the actions that differ in distribution: the total variation distance, 0 to 1.
    """

    state: str
    timesteps: int
    element: str
    value: str | None
    recorded: float
    policy: float
    difference: float


@dataclass(frozen=True)
class Agreement:
    """Agreement of discrete actions.

    Attributes:
        share: share of the timesteps in which the policy's action is the recorded one.
        by_chance: the expected share if both chose independently of the state, with the same frequencies of actions.
    """

    share: float
    by_chance: float


@dataclass(frozen=True)
class ActionComparison:
    """The actions of a policy beside the recorded ones, in the recorded states.

    Attributes:
        agreement: agreement of the actions; None if an element is continuous.
        elements: frequencies of the first action elements.
        states: the states of the largest difference, largest first; empty if the policy differs equally in all states.
    """

    agreement: Agreement | None
    elements: tuple[ActionElement, ...]
    states: tuple[StateDifference, ...]


@dataclass(frozen=True)
class _Element:
    """Values of an action element.

    Attributes:
        name: name of the element.
        values: names of the K values or ranges.
        is_discrete: see `ActionElement`.
        recorded_values, policy_values: `[S]`.
        recorded_index, policy_index: `[S]` indices in `values`.
    """

    name: str
    values: tuple[str, ...]
    is_discrete: bool
    recorded_values: F64
    policy_values: F64
    recorded_index: NDArray[np.int64]
    policy_index: NDArray[np.int64]

    def shares(self, rows: NDArray[Any] | slice) -> tuple[F64, F64]:
        """Return the shares `[K]` of the recorded and of the policy's values in some steps."""
        indices = self.recorded_index[rows], self.policy_index[rows]
        recorded_shares, policy_shares = (
            np.bincount(index, minlength=len(self.values)) / len(index) for index in indices
        )
        return recorded_shares, policy_shares

    def distance(self, rows: NDArray[Any] | slice) -> float:
        """Return the total variation distance of the two distributions in some steps."""
        recorded_shares, policy_shares = self.shares(rows)
        return float(np.abs(recorded_shares - policy_shares).sum() / 2)


def compare_actions(target: TargetPolicy, window: WindowData, seed: int = 0) -> ActionComparison:
    """Compare a policy's actions with the recorded ones; in long data, at up to 200,000 evenly spaced steps.

    Args:
        target: the policy.
        window: recorded episodes, with the policy's outputs if it is recurrent.
        seed: seed of the policy's samples.
    """
    stride = -(-window.num_steps // _MAX_STEPS)
    steps = torch.arange(0, window.num_steps, stride)
    generator = torch.Generator().manual_seed(seed)
    policy = target.policy
    spaces = flatten_space(policy.action_space, Columns.ACTIONS)
    kinds = [  # name of each element, and True if it is discrete
        (name, np.dtype(space.dtype or np.int64).kind != "f")
        for leaf, space in spaces.items()
        for name in element_names(leaf, space)
    ]

    def act(batch: Batch) -> Tensor:
        distribution = target.distribution(batch)
        should_sample = target.explore and target.module.action_head.noise_size > 0
        actions = (
            distribution.sample(sample_noise(target.module, batch, generator))
            if should_sample
            else distribution.mode()
        )
        return _to_columns(actions, policy, spaces)

    policy_values = map_steps(window, act, steps).numpy()
    recorded_actions = {leaf: window.columns[leaf][steps] for leaf in spaces}
    recorded_values = _to_columns(recorded_actions, policy, spaces).numpy()
    elements = [
        _count_values(name, is_discrete, recorded_values[:, index], policy_values[:, index])
        for index, (name, is_discrete) in enumerate(kinds[:_MAX_ELEMENTS])
    ]
    is_agreement_defined = all(is_discrete for _, is_discrete in kinds)
    agreement = _agreement(recorded_values, policy_values) if is_agreement_defined else None
    observations = dict(_observation_elements(policy, window, steps))
    return ActionComparison(
        agreement, tuple(map(_describe, elements)), _find_states(observations, elements, len(steps))
    )


def element_names(leaf: str, space: gym.Space) -> list[str]:
    """Return the names of a leaf's elements: those of a `NamedBox` (`heart_rate`), else numbered ones (`obs[3]`)."""
    root, _, path = leaf.partition("/")
    name = path or root.removesuffix("s") if root == Columns.ACTIONS else path or root
    size = int(np.prod(space.shape or ()))
    if isinstance(space, NamedBox):
        return list(space.names)
    return [name] if size == 1 else [f"{name}[{index}]" for index in range(size)]


def _to_columns(
    actions: Tensor | Mapping[str, Tensor], policy: Policy, spaces: Mapping[str, gym.Space]
) -> Tensor:
    """Return module actions `[B, *shape]`, or such leaves, as columns `[B, E]` (float64) in the environment's units."""
    leaves = {Columns.ACTIONS: actions} if isinstance(actions, Tensor) else actions
    columns = []
    for leaf, space in spaces.items():
        rows = leaves[leaf].double().cpu().reshape(len(leaves[leaf]), -1)
        if leaf in policy.preprocessing.scaled_leaves:
            assert isinstance(space, gym.spaces.Box)
            low, high = (
                torch.from_numpy(bound.astype(np.float64).ravel()) for bound in (space.low, space.high)
            )
            rows = low + (rows.clamp(-1, 1) + 1) * (high - low) / 2
        columns.append(rows)
    return torch.cat(columns, 1)


def _agreement(recorded_values: F64, policy_values: F64) -> Agreement:
    _, index = np.unique(np.concatenate([recorded_values, policy_values]), axis=0, return_inverse=True)
    index = index.reshape(2, len(recorded_values))
    shares = [np.bincount(rows, minlength=int(index.max()) + 1) / len(rows) for rows in index]
    return Agreement(float((index[0] == index[1]).mean()), float(shares[0] @ shares[1]))


def _count_values(name: str, is_discrete: bool, recorded_values: F64, policy_values: F64) -> _Element:
    values = np.concatenate([recorded_values, policy_values])
    if is_discrete:
        unique_values, counts = np.unique(values, return_counts=True)
        common_values = np.sort(unique_values[np.argsort(-counts, kind="stable")[:_MAX_VALUES]])
        names = [f"{value:.0f}" for value in common_values]
        if len(common_values) < len(unique_values):
            names.append("other")

        def indices_of(column: F64) -> NDArray[np.int64]:
            index = np.searchsorted(common_values, column).clip(max=len(common_values) - 1)
            return np.where(common_values[index] == column, index, len(common_values))
    else:
        low, high = np.quantile(values, [0.005, 0.995])
        edges = np.linspace(low, high if high > low else low + 1, _NUM_RANGES + 1)
        names = [f"{significant(start)} to {significant(end)}" for start, end in pairwise(edges)]

        def indices_of(column: F64) -> NDArray[np.int64]:
            return (np.searchsorted(edges, column, side="right") - 1).clip(0, _NUM_RANGES - 1)

    return _Element(
        name,
        tuple(names),
        is_discrete,
        recorded_values,
        policy_values,
        indices_of(recorded_values),
        indices_of(policy_values),
    )


def _describe(element: _Element) -> ActionElement:
    recorded_shares, policy_shares = element.shares(slice(None))
    return ActionElement(
        element.name,
        element.is_discrete,
        element.values,
        tuple(recorded_shares.tolist()),
        tuple(policy_shares.tolist()),
        float(element.recorded_values.mean()),
        float(element.policy_values.mean()),
    )


def _observation_elements(policy: Policy, window: WindowData, steps: Tensor) -> Iterator[tuple[str, F64]]:
    """Yield name and values `[S]` of each element of the observations, in the environment's units."""
    spaces = flatten_space(policy.observation_space, Columns.OBS)
    for leaf in leaves_of(Columns.OBS, window.columns):
        names = element_names(leaf, spaces[leaf])
        if len(names) > _MAX_FEATURES:
            continue
        rows = window.columns[leaf][window.obs_row[steps]].cpu().numpy().astype(np.float64)
        # Indicators of missing values follow the observation's own elements.
        rows = rows.reshape(len(rows), -1)[:, : len(names)]
        if (mean_std := policy.preprocessing.filters.get(leaf)) is not None:
            rows = rows * mean_std.std.reshape(-1) + mean_std.mean.reshape(-1)
        yield from zip(names, rows.T, strict=True)


def _find_states(
    observations: Mapping[str, F64], elements: list[_Element], num_steps: int
) -> tuple[StateDifference, ...]:
    """Return the states with the largest differences, at most one value or range of each observation element."""
    overall_distances = [element.distance(slice(None)) for element in elements]
    differences = []
    for name, values in observations.items():
        candidates = []
        for state, rows in _split(name, values):
            if len(rows) < max(_MIN_STATE_STEPS, num_steps // 100):
                continue
            for element, overall_distance in zip(elements, overall_distances, strict=True):
                distance = element.distance(rows)
                # By chance, the distance of K values in n steps is about 0.5·√(K/n); the largest of many is larger.
                if distance > overall_distance + np.sqrt(len(element.values) / len(rows)):
                    candidates.append((distance, state, rows, element))
        if candidates:
            differences.append(_describe_state(*max(candidates, key=lambda candidate: candidate[0])))
    return tuple(sorted(differences, key=lambda state: -state.difference)[:_MAX_STATES])


def _describe_state(
    distance: float, state: str, rows: NDArray[np.int64], element: _Element
) -> StateDifference:
    value: str | None = None
    recorded, policy = float(element.recorded_values[rows].mean()), float(element.policy_values[rows].mean())
    if element.is_discrete:
        shares = element.shares(rows)
        index = int(np.abs(shares[0] - shares[1]).argmax())
        value, recorded, policy = element.values[index], float(shares[0][index]), float(shares[1][index])
    return StateDifference(state, len(rows), element.name, value, recorded, policy, distance)


def _split(name: str, values: F64) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield states and their steps: each value of an element with few values, else the thirds of its values."""
    unique_values = np.unique(values)
    if len(unique_values) == 1:
        return
    if len(unique_values) <= _MAX_VALUES:
        for value in unique_values:
            yield f"{name} = {significant(value)}", np.flatnonzero(values == value)
        return
    low, high = np.quantile(values, [1 / 3, 2 / 3])
    low_text, high_text = significant(low), significant(high)
    yield f"{name} below {low_text}", np.flatnonzero(values < low)
    yield f"{name} from {low_text} to {high_text}", np.flatnonzero((values >= low) & (values <= high))
    yield f"{name} above {high_text}", np.flatnonzero(values > high)
