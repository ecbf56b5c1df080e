"""Summarise a dataset: sizes, spaces, returns, lengths, actions, coverage, and problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.inspection.action_units import describe_wrong_units
from hindcast.datasets.inspection.guessing import guess_space
from hindcast.datasets.inspection.leaf_values import MAX_DISTINCT_VALUES, LeafValues
from hindcast.datasets.inspection.sample import SAMPLE_STEPS, Progress, Sample
from hindcast.datasets.inspection.statistics import F64, ValueDistribution
from hindcast.datasets.inspection.summary import (
    ActionLeaf,
    Coverage,
    DataProblem,
    ObservationLeaf,
    Origin,
    Summary,
    sort_by_severity,
)
from hindcast.datasets.units import count_files, episode_lengths
from hindcast.datasets.validate import LARGEST_FLOAT32, get_leaf_spaces
from hindcast.episodes.columns import Columns, leaves_of
from hindcast.episodes.spaces import space_to_json

Spaces = Mapping[str, gym.Space]

GRID_SIDE = 20
_NEGLIGIBLE_VARIANCE = 1e-3
"""Fraction of the first component's variance below which the second component is left out."""
_MAX_DIMENSIONS = 256
"""Number of dimensions, spread evenly over all, from which the coverage is computed at most."""


def summarise(
    dataset: EpisodeDataset,
    sample_limit: int | None = SAMPLE_STEPS,
    *,
    known_problems: Sequence[DataProblem] = (),
    progress: Progress | None = None,
) -> Summary:
    """Summarise a dataset from units spread evenly over it, reading one at a time.

    Args:
        dataset: the dataset.
        sample_limit: approximate number of timesteps to read, from at least eight units; None reads all.
        known_problems: problems found earlier, to include.
        progress: called with the number of units done and the number of units.

    Raises:
        StorageError: the storage fails or denies access. Damaged files become problems.
    """
    spec = dataset.spec
    sample = Sample(dataset, sample_limit, progress)
    observation_space, observation_origin = _find_space(sample, Columns.OBS, spec.observation_space)
    action_space, action_origin = _find_space(sample, Columns.ACTIONS, spec.action_space)
    rewards = sample.leaves.get(Columns.REWARDS)
    reward_distributions = rewards.distributions.compute() if rewards is not None else []
    num_checked = max(1, sample.episode_statistics.num_episodes)
    lengths = episode_lengths(dataset.units).astype(np.int64)
    observations = [sample.leaves[name] for name in leaves_of(Columns.OBS, sample.leaves)]
    leaf_spaces = get_leaf_spaces(spec, observation_space, action_space)
    return Summary(
        layouts=dataset.layouts,
        episodes=dataset.num_episodes,
        timesteps=dataset.num_steps,
        bytes=dataset.nbytes,
        stored_bytes=dataset.stored_bytes,
        files=count_files(dataset.units),
        digest=dataset.digest,
        environment=spec.environment,
        observation_space=None if observation_space is None else space_to_json(observation_space),
        action_space=None if action_space is None else space_to_json(action_space),
        observation_space_from=observation_origin,
        action_space_from=action_origin,
        columns={name: str(leaf) for name, leaf in spec.leaves.items()},
        sampled_episodes=sample.num_episodes,
        sampled_timesteps=sample.num_steps,
        checked_episodes=sample.episode_statistics.num_episodes,
        lengths=ValueDistribution.from_values(lengths) if len(lengths) else None,
        returns=ValueDistribution.from_values(np.concatenate(sample.returns)) if sample.returns else None,
        rewards=reward_distributions[0] if reward_distributions else None,
        zero_rewards=rewards.num_zeros / rewards.num_rows
        if rewards is not None and rewards.num_rows
        else None,
        rewarded_episodes_share=sample.num_rewarded_episodes / sample.num_episodes
        if sample.returns and sample.num_episodes
        else None,
        observations=tuple(_describe_observations(observations, leaf_spaces)),
        coverage=_compute_total_coverage(observations, leaf_spaces),
        actions=tuple(_describe_actions(sample, leaf_spaces)),
        terminated=sample.episode_statistics.num_terminated / num_checked,
        truncated=sample.episode_statistics.num_truncated / num_checked,
        has_logp=Columns.ACTION_LOGP in spec.leaves,
        frames=sample.frames,
        problems=sort_by_severity([*known_problems, *_find_problems(sample)]),
    )


def _find_space(
    sample: Sample, column: str, recorded_space: gym.Space | None
) -> tuple[gym.Space | None, Origin | None]:
    """Return the space of a column and its origin; None for both if it is not recorded and cannot be guessed."""
    if recorded_space is not None:
        return recorded_space, "recorded"
    bounds = {name: leaf.bounds for name, leaf in sample.leaves.items() if leaf.bounds is not None}
    guess = guess_space(sample.dataset.spec, column, bounds)
    return guess, None if guess is None else "guessed"


def _describe_observations(leaves: Sequence[LeafValues], leaf_spaces: Spaces) -> Iterator[ObservationLeaf]:
    for leaf in leaves:
        if leaf.low is None or leaf.high is None or not leaf.low.size:
            continue
        low, high = (bound[leaf.shown_dimensions].astype(np.float64) for bound in (leaf.low, leaf.high))
        leaf_space = leaf_spaces.get(leaf.name)
        yield ObservationLeaf(
            name=leaf.name,
            dimensions=leaf.low.size,
            shown_dimensions=tuple(leaf.shown_dimensions.tolist()),
            low=tuple(map(_finite_or_none, low)),
            high=tuple(map(_finite_or_none, high)),
            share_of_space=tuple(map(_finite_or_none, _compute_range_shares(leaf, low, high, leaf_space))),
            constant_dimensions=len(leaf.constant_dimensions),
            values_seen=len(leaf.value_counts) if isinstance(leaf_space, spaces.Discrete) else None,
            values=int(leaf_space.n) if isinstance(leaf_space, spaces.Discrete) else None,
            dimension_names=leaf.dimension_names,
            missing=leaf.missing_shares,
            is_image=leaf.is_image,
        )


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


@np.errstate(all="ignore")
def _compute_range_shares(leaf: LeafValues, low: F64, high: F64, space: gym.Space | None) -> F64:
    """Return the range of each shown dimension as a fraction of the range in the space; NaN if that is not finite."""
    # The recorded space may not fit the data, which is reported as a separate problem.
    if not isinstance(space, spaces.Box) or leaf.low is None or space.low.size != leaf.low.size:
        return np.full(len(low), np.nan)
    low_bound, high_bound = (
        bound.ravel()[leaf.shown_dimensions].astype(np.float64) for bound in (space.low, space.high)
    )
    width = high_bound - low_bound
    return np.where(np.isfinite(width) & (width > 0), (high - low) / width, np.nan)


def _compute_total_coverage(leaves: Sequence[LeafValues], leaf_spaces: Spaces) -> Coverage | None:
    """Compute the coverage of the sampled observations over all leaves, concatenated."""
    # Every leaf samples the same rows, so row i of each belongs to the same observation.
    continuous_leaves = [
        leaf for leaf in leaves if not isinstance(leaf_spaces.get(leaf.name), spaces.Discrete)
    ]
    samples = [rows for leaf in continuous_leaves if (rows := leaf.sampled_rows.rows) is not None]
    if not samples:
        return None
    observations = np.concatenate(samples, axis=1, dtype=np.float64)
    num_dimensions = min(observations.shape[1], _MAX_DIMENSIONS)
    return compute_coverage(
        observations[:, np.linspace(0, observations.shape[1] - 1, num_dimensions).round().astype(np.int64)]
    )


def _describe_actions(sample: Sample, leaf_spaces: Spaces) -> Iterator[ActionLeaf]:
    for name in leaves_of(Columns.ACTIONS, sample.leaves):
        leaf = sample.leaves[name]
        if not leaf.num_rows:
            continue
        if (
            isinstance(leaf_spaces.get(name), spaces.Discrete)
            and len(leaf.value_counts) <= MAX_DISTINCT_VALUES
        ):
            yield ActionLeaf(name=name, values=dict(sorted(leaf.value_counts.items())))
            continue
        distributions = leaf.distributions.compute()
        yield ActionLeaf(
            name=name,
            dimensions=tuple(distribution for distribution in distributions if distribution is not None),
            dimension_names=tuple(
                name
                for name, distribution in zip(leaf.dimension_names, distributions, strict=True)
                if distribution is not None
            ),
        )


def _find_problems(sample: Sample) -> Iterator[DataProblem]:
    """Yield the problems of the sample, and the notes of the dataset."""
    yield from sample.problems
    for leaf in sample.leaves.values():
        yield from leaf.problems()
    yield from _find_wrong_units(sample)
    yield from sample.episode_statistics.problems()
    rewards = sample.leaves.get(Columns.REWARDS)
    if rewards is not None and rewards.num_rows and rewards.num_zeros == rewards.num_rows:
        message = f"all {formatting.integer(rewards.num_rows)} inspected rewards are 0: returns and values are 0 too"
        yield DataProblem(severity="warning", kind="zero-rewards", message=message)
    for note in sample.dataset.notes:
        yield DataProblem(severity="info", kind="note", message=note)
    if sample.dataset.spec.leaves and Columns.ACTION_LOGP not in sample.dataset.spec.leaves:
        message = f"{Columns.ACTION_LOGP!r} is not recorded: importance-sampling estimators cannot be used"
        yield DataProblem(severity="info", kind="no-logp", message=message)


def _find_wrong_units(sample: Sample) -> Iterator[DataProblem]:
    for name in leaves_of(Columns.ACTIONS, sample.leaves):
        leaf = sample.leaves[name]
        if leaf.low is None or leaf.high is None:
            continue
        message = describe_wrong_units(name, leaf.low, leaf.high, leaf.space, sample.dataset.spec)
        if message is not None:
            yield DataProblem(severity="warning", kind="wrong-units", message=message)


def compute_coverage(observations: NDArray[Any]) -> Coverage | None:
    """Count `[n, D]` observations in a grid over their first two principal components.

    If the second component has less than a thousandth of the first one's variance, the grid has one dimension.

    Returns:
        The coverage, or None if no dimension varies or no observation is finite.
    """
    values = np.asarray(observations, dtype=np.float64)
    values = values[(np.abs(values) <= LARGEST_FLOAT32).all(axis=1)]
    if not len(values):
        return None
    deviation = values.std(axis=0)
    # The deviation of constant values is not exactly 0, by rounding.
    is_varying = deviation > 1e-12 * np.maximum(1.0, np.abs(values).max(axis=0))
    if not is_varying.any():
        return None
    z_scores = (values[:, is_varying] - values[:, is_varying].mean(axis=0)) / deviation[is_varying]
    coordinates, explained_share = _project_to_principal_components(z_scores)
    counts = np.histogramdd(coordinates, bins=GRID_SIDE)[0].astype(np.int64)
    grid = counts.reshape(GRID_SIDE, -1)
    shares = counts.ravel()[counts.ravel() > 0] / counts.sum()
    return Coverage(
        observations=len(values),
        side=GRID_SIDE,
        occupied_share=float((counts > 0).mean()),
        evenness=float(-(shares * np.log(shares)).sum() / np.log(counts.size)),
        explained_variance=explained_share,
        counts=tuple(tuple(row) for row in grid.tolist()),
    )


def _project_to_principal_components(z_scores: F64) -> tuple[F64, float]:
    """Project `[n, D]` values to their first one or two principal components.

    Returns:
        Coordinates, `[n, 2]` or, if one component suffices, `[n, 1]`; and the explained fraction of the variance.
    """
    variances, directions = np.linalg.eigh(z_scores.T @ z_scores / len(z_scores))
    num_components = 1 if len(variances) == 1 or variances[-2] < _NEGLIGIBLE_VARIANCE * variances[-1] else 2
    components = directions[:, ::-1][:, :num_components]
    # An eigenvector's sign is arbitrary: its largest coordinate becomes positive.
    signs = np.sign(components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])])
    return z_scores @ (components * signs), float(variances[::-1][:num_components].sum() / variances.sum())
