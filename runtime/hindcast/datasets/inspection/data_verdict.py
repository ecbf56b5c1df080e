"""Judge before a training what recorded data allow: reinforcement learning, imitation only, or neither.

A policy can only be better than the recorded one where similar states were recorded with different actions, and where
different actions were followed by different rewards. Both are measured among nearest neighbours of other episodes, so
that neither requires a model: an action minus the mean of the neighbours' actions is the part that the state does not
explain, and the same holds for the rewards that follow. A linear model predicts this part of the rewards from that of
the action. It is fitted to half of the episodes and tested on the other half, which tells whether actions matter.

Shapes: N = episodes, S = steps, Q = steps that are compared with their neighbours, D = features, A = action elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.inspection.sample import sample_units
from hindcast.datasets.inspection.statistics import F64
from hindcast.datasets.inspection.summary import DataAnswer, DataVerdict
from hindcast.datasets.validate import TEXT_ADVICE, get_leaf_spaces
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, leaves_of
from hindcast.errors import UserError
from hindcast.formats.spec import DataSpec

_SAMPLE_STEPS: Final = 50_000
_MAX_STEPS: Final = 12_000
"""Number of timesteps among which neighbours are searched."""
_MAX_QUERIES: Final = 4_000
_MAX_QUERIES_AT_ONCE: Final = 200
"""Number of queries of which all distances are in memory at the same time."""
_NUM_NEIGHBOURS: Final = 12
_GROUP_SIZE: Final = 16
"""Number of steps in a group, see `_find_smallest`."""
_MAX_FEATURES: Final = 64
"""Number of elements of a leaf that are used at most, spread evenly."""
_NUM_COMPONENTS: Final = 8
"""Number of principal components of the observations in which neighbours are searched."""
_MAX_DISCRETE: Final = 20
"""Number of different actions up to which integers count as categories."""
_HORIZONS: Final = (1, 10, None)
"""Numbers of steps over which rewards are summed; None is the rest of the episode."""
_MIN_EPISODES: Final = 20
"""Number of episodes below which no part can be held out to judge a policy."""
_MIN_VARIATION: Final = 0.05
"""Share of the actions' variance that the state does not explain, below which the recorded policy counts as
deterministic.
"""
_MIN_SIGNIFICANCE: Final = 3.5
"""Standard errors of the effect of actions above which it is visible; of 480 recordings without effect, none had more,
and 2 % more than 3.2.
"""
_CHANGED_SHARE: Final = 0.1
"""Share of random actions of the policy that is judged by its effective episodes."""
_MIN_EFFECTIVE_EPISODES: Final = 10.0
"""Number of effective episodes below which this policy cannot be judged without a model."""


class _SampledSteps(NamedTuple):
    """Sampled steps.

    Attributes:
        features: `[S, D]` numbers of the observations.
        actions: `[S, A]` categories as columns of 0 and 1, or numbers, each with standard deviation 1 unless constant.
        outcomes: for each of `_HORIZONS`, `[S]` sums of the rewards that follow.
        episode: `[S]` number of the episode.
        logp: `[S]` log-probabilities of Discrete actions; None for others.
        num_actions: number of different actions; 0 without log-probabilities.
    """

    features: F64
    actions: F64
    outcomes: tuple[F64, ...]
    episode: NDArray[np.int64]
    logp: F64 | None
    num_actions: int


class _Effect(NamedTuple):
    """The effect of actions on the rewards of the next steps; see `DataVerdict`."""

    share: float
    significance: float
    horizon: int | None


def judge_data(dataset: Dataset) -> DataVerdict:
    """Judge what the data allow, by a sample of some 50,000 timesteps of whole episodes, spread evenly.

    Raises:
        StorageError: the storage fails or denies access. Damaged files are left out.
    """
    blocks = list(_read_blocks(dataset))
    num_episodes = dataset.num_episodes
    steps = _collect_steps(blocks, dataset) if blocks else None
    if steps is None:
        return DataVerdict(
            answer="unusable",
            reasons=(_describe_missing_numbers(dataset.spec),),
            episodes=num_episodes,
        )
    if not np.ptp(steps.actions, axis=0).any():
        reasons = ("every recorded action is the same, so there is nothing to learn",)
        return DataVerdict(answer="unusable", reasons=reasons, episodes=num_episodes, variation=0.0)
    return _judge_steps(steps, num_episodes)


def _describe_missing_numbers(spec: DataSpec) -> str:
    for column in (Columns.OBS, Columns.ACTIONS):
        leaves = leaves_of(column, spec.leaves)
        if leaves and all(spec.leaves[leaf].kind == "text" for leaf in leaves):
            return f"{leaves[0]!r} is text; {TEXT_ADVICE}"
    return "there are no numeric observations and actions"


def _judge_steps(steps: _SampledSteps, num_episodes: int) -> DataVerdict:
    episodes = formatting.plural(num_episodes, "episode")
    queries, neighbours = _find_neighbours(steps)
    if not len(queries):
        return DataVerdict(answer="unusable", reasons=(f"{episodes}: too few",), episodes=num_episodes)
    residuals = _subtract_neighbours(steps.actions, queries, neighbours)
    # The mean of k neighbours has a variance too, 1/k of the actions'.
    noise = 1 + 1 / neighbours.shape[1]
    variation = min(
        1.0, float(np.square(residuals).sum() / noise / (steps.actions.var(0).sum() * len(queries)))
    )
    is_deterministic = variation < _MIN_VARIATION
    if steps.logp is not None:
        is_deterministic = float(np.exp(steps.logp).mean()) > 1 - _MIN_VARIATION
    effect = _find_effect(steps, queries, neighbours, residuals)
    num_effective = _effective_episodes(steps, num_episodes)
    reasons = [
        f"{formatting.as_percentage(variation)} of the variance of the actions is not explained by the state",
        f"{episodes}",
    ]
    answer: DataAnswer = "clone"
    if not any(np.ptp(outcome) > 0 for outcome in steps.outcomes):
        reasons.insert(0, "all rewards are equal or missing, so no action is better than another")
    elif num_episodes < _MIN_EPISODES:
        reasons[-1] = (
            f"{episodes}, of which no part can be held out to judge a policy ({_MIN_EPISODES} needed)"
        )
        reasons.reverse()  # the decisive reason comes first
    elif is_deterministic:
        reasons.insert(
            0, "similar states were recorded with the same action, so no other action can be judged"
        )
    elif effect.significance < _MIN_SIGNIFICANCE:
        reasons.insert(
            0,
            "no effect of the actions on the rewards is visible beyond that of the state "
            f"({formatting.significant(effect.significance)} standard errors, {_MIN_SIGNIFICANCE} needed)",
        )
    else:
        answer = "improve"
        reasons.insert(0, _describe_effect(effect))
    if num_effective is not None:
        advice = "" if num_effective >= _MIN_EFFECTIVE_EPISODES else ", too few to judge it without a model"
        reasons.append(
            f"a policy that takes {formatting.as_percentage(_CHANGED_SHARE)} of its actions at random would have "
            f"{formatting.significant(num_effective)} effective episodes{advice}"
        )
    return DataVerdict(
        answer=answer,
        reasons=tuple(reasons),
        episodes=num_episodes,
        variation=variation,
        effect=effect.share,
        significance=effect.significance,
        effective_episodes=num_effective,
    )


def _describe_effect(effect: _Effect) -> str:
    rewards = {1: "the next reward", None: "the rewards until the end"}.get(
        effect.horizon, f"the next {effect.horizon} rewards"
    )
    return (
        f"in similar states, different actions explain {formatting.as_percentage(max(0.0, effect.share))} of the "
        f"variance of {rewards} ({formatting.significant(effect.significance)} standard errors)"
    )


def _read_blocks(dataset: Dataset) -> Iterator[Block]:
    columns = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_LOGP)
    leaves = [leaf for column in columns for leaf in leaves_of(column, dataset.spec.leaves)]
    for unit in sample_units(dataset.units, _SAMPLE_STEPS):
        try:
            block = dataset.read(unit, leaves)
        except UserError:  # `inspect` reports damaged files
            continue
        if block.num_steps:
            yield block


def _collect_steps(blocks: list[Block], dataset: Dataset) -> _SampledSteps | None:
    """Return the steps of blocks; None without numeric observations or actions."""
    spec = dataset.spec
    leaf_spaces = get_leaf_spaces(spec, spec.observation_space, spec.action_space)
    obs, actions = (
        [leaf for leaf in leaves_of(column, spec.leaves) if spec.leaves[leaf].dtype is not None]
        for column in (Columns.OBS, Columns.ACTIONS)
    )
    if not obs or not actions:
        return None
    rows = [_flatten(blocks, leaf, leaf_spaces.get(leaf), is_observation=True) for leaf in obs]
    features = np.concatenate(rows, 1)
    action_rows = np.concatenate(
        [_flatten(blocks, leaf, leaf_spaces.get(leaf), is_observation=False) for leaf in actions], 1
    )
    length = np.concatenate([block.length for block in blocks])
    length = length[length > 0]
    rewards = np.zeros(len(features))
    reward_leaf = spec.leaves.get(Columns.REWARDS)
    if reward_leaf is not None and reward_leaf.dtype is not None and not reward_leaf.shape:
        rewards = np.concatenate([block.columns[Columns.REWARDS] for block in blocks]).astype(np.float64)
    is_discrete = all(spec.leaves[leaf].dtype.kind in "iub" for leaf in actions)  # type: ignore[union-attr]
    logp = None
    if is_discrete and Columns.ACTION_LOGP in spec.leaves:
        logp = np.concatenate([block.columns[Columns.ACTION_LOGP] for block in blocks]).astype(np.float64)
        logp = logp if np.isfinite(logp).all() else None
    return _SampledSteps(
        _principal_components(_standardise(features)),
        _standardise(action_rows),
        tuple(_sum_rewards(np.nan_to_num(rewards), length, horizon) for horizon in _HORIZONS),
        np.repeat(np.arange(len(length)), length),
        logp,
        0 if logp is None else len(np.unique(action_rows.astype(np.float32), axis=0)),
    )


def _flatten(blocks: list[Block], leaf: str, space: Any, *, is_observation: bool) -> F64:
    """Return a leaf's values as numbers `[S, ·]`, integers with few values as columns of 0 and 1."""
    parts = []
    for block in blocks:
        column = block.columns[leaf]
        if is_observation:  # each episode has a final observation
            column = column[block.obs_row]
        parts.append(column.reshape(len(column), -1))
    rows = np.concatenate(parts)
    if rows.shape[1] > _MAX_FEATURES:
        rows = rows[:, np.linspace(0, rows.shape[1] - 1, _MAX_FEATURES).round().astype(int)]
    is_category = rows.dtype.kind in "iub" and (not is_observation or isinstance(space, spaces.Discrete))
    if is_category:
        values = [np.unique(column) for column in rows.T]
        if sum(map(len, values)) <= _MAX_DISCRETE * rows.shape[1]:
            return np.concatenate(
                [rows[:, [index]] == value for index, value in enumerate(values)], 1, dtype=np.float64
            )
    return rows.astype(np.float64)


def _standardise(rows: F64) -> F64:
    """Return columns with mean 0 and standard deviation 1; missing values become the mean."""
    rows = np.where(np.isfinite(rows), rows, np.nan)
    with np.errstate(all="ignore"):
        mean = np.nan_to_num(np.nanmean(rows, 0))
        rows = np.where(np.isnan(rows), mean, rows) - mean
    deviation = rows.std(0)
    return np.asarray(rows / np.where(deviation > 1e-9 * (1 + np.abs(mean)), deviation, np.inf))


def _principal_components(rows: F64) -> F64:
    if rows.shape[1] <= _NUM_COMPONENTS:
        return rows
    _, directions = np.linalg.eigh(rows.T @ rows / len(rows))
    return np.asarray(rows @ directions[:, -_NUM_COMPONENTS:])


def _sum_rewards(rewards: F64, length: NDArray[np.int64], horizon: int | None) -> F64:
    """Return the sum of the rewards `[S]` of the next steps of the episode, the step's own included."""
    sums = np.concatenate([[0.0], np.cumsum(rewards)])
    end = np.repeat(np.cumsum(length), length)
    step = np.arange(len(rewards))
    return np.asarray(sums[end if horizon is None else np.minimum(step + horizon, end)] - sums[step])


def _find_neighbours(steps: _SampledSteps) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return steps `[Q]` and the nearest steps of other episodes to each, `[Q, k]`; both empty without enough."""
    num_steps = len(steps.features)
    reference = np.linspace(0, num_steps - 1, min(num_steps, _MAX_STEPS)).astype(np.int64)
    queries = reference[
        np.linspace(0, len(reference) - 1, min(len(reference), _MAX_QUERIES)).astype(np.int64)
    ]
    max_episode_steps = int(np.bincount(steps.episode[reference]).max())
    if len(reference) - max_episode_steps < 2 * _NUM_NEIGHBOURS:
        return np.zeros(0, np.int64), np.zeros((0, _NUM_NEIGHBOURS), np.int64)
    # The columns are padded to whole groups with points that are far away.
    num_groups = -(-len(reference) // _GROUP_SIZE)
    points = np.zeros((num_groups * _GROUP_SIZE, steps.features.shape[1] + 1), np.float32)
    points[: len(reference), :-1] = -2 * steps.features[reference]
    points[:, -1] = np.finfo(np.float32).max
    points[: len(reference), -1] = np.square(steps.features[reference]).sum(1)
    reference_episode = steps.episode[reference]  # ascending
    first, last = (
        np.searchsorted(reference_episode, steps.episode[queries], side) for side in ("left", "right")
    )
    neighbours = []
    for part in np.array_split(np.arange(len(queries)), -(-len(queries) // _MAX_QUERIES_AT_ONCE)):
        features = steps.features[queries[part]]
        # squared distance minus the square of the query, which is the same for the whole row
        distance = np.c_[features, np.ones(len(part))].astype(np.float32) @ points.T
        for row, index in enumerate(part):
            distance[row, first[index] : last[index]] = np.inf
        columns = _find_smallest(distance, num_groups)
        neighbours.append(reference[columns])
    return queries, np.concatenate(neighbours)


def _find_smallest(distance: NDArray[np.float32], num_groups: int) -> NDArray[np.int64]:
    """Return the columns of the `_NUM_NEIGHBOURS` smallest distances of each row.

    They lie in the `_NUM_NEIGHBOURS` groups of columns with the smallest minima, so that only these are partitioned,
    which takes a tenth of the time.
    """
    count = _NUM_NEIGHBOURS
    minima = distance.reshape(len(distance), _GROUP_SIZE, num_groups).min(1)
    groups = np.argpartition(minima, min(count, num_groups - 1), axis=1)[:, :count]
    columns = (groups[:, :, None] + num_groups * np.arange(_GROUP_SIZE)).reshape(len(distance), -1)
    order = np.argpartition(np.take_along_axis(distance, columns, 1), count, axis=1)[:, :count]
    return np.take_along_axis(columns, order, 1)


def _subtract_neighbours(values: F64, queries: NDArray[np.int64], neighbours: NDArray[np.int64]) -> F64:
    return np.asarray(values[queries] - values[neighbours].mean(1))


def _find_effect(
    steps: _SampledSteps, queries: NDArray[np.int64], neighbours: NDArray[np.int64], actions: F64
) -> _Effect:
    """Return the clearest effect of actions on rewards over the horizons.

    Args:
        steps: the steps.
        queries: `[Q]` steps.
        neighbours: `[Q, k]` their neighbours.
        actions: `[Q, A]` actions minus the mean of the neighbours' actions.
    """
    states = steps.features[queries][:, -4:]
    # The effect of an action may depend on the state.
    inputs = np.concatenate([actions, *(actions * states[:, [index]] for index in range(states.shape[1]))], 1)
    episodes = steps.episode[queries]
    effects = []
    for horizon, outcome in zip(_HORIZONS, steps.outcomes, strict=True):
        target = _subtract_neighbours(outcome, queries, neighbours)
        prediction = _predict_by_halves(inputs, target, episodes)
        gains = np.bincount(episodes, prediction * target, minlength=int(episodes.max()) + 1)
        gains = gains[np.unique(episodes)]
        error = float(gains.std()) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
        significance = float(gains.mean()) / error if error > 0 else 0.0
        total = float(np.square(target).sum())
        share = 1 - float(np.square(target - prediction).sum()) / total if total > 0 else 0.0
        effects.append(_Effect(share, significance, horizon))
    return max(effects, key=lambda effect: effect.significance)


def _predict_by_halves(inputs: F64, target: F64, episodes: NDArray[np.int64]) -> F64:
    """Predict the target of each half of the episodes by ridge regression on the other half."""
    prediction = np.zeros(len(target))
    for half in (0, 1):
        is_fitted = episodes % 2 != half
        x = inputs[is_fitted]
        ridge = np.eye(x.shape[1]) * (1 + 0.01 * len(x))
        weights = np.linalg.solve(x.T @ x + ridge, x.T @ target[is_fitted])
        prediction[~is_fitted] = inputs[~is_fitted] @ weights
    return prediction


def _effective_episodes(steps: _SampledSteps, num_episodes: int) -> float | None:
    """Return the expected effective episodes of a policy that takes a share of its actions at random; see Kish 1965."""
    if steps.logp is None:
        return None
    # The ratio of the two policies' probabilities of each recorded action, ((1 - e)·μ + e/n) / μ.
    ratios = 1 - _CHANGED_SHARE + _CHANGED_SHARE * np.exp(-steps.logp) / steps.num_actions
    log_weights = np.bincount(steps.episode, np.log(ratios))
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / np.square(weights).sum() * num_episodes / len(weights))
