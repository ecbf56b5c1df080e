"""A picture of a dataset: sizes, returns, lengths, actions, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, leaves_of, root
from hindcast.store.dataset import Dataset, Unit
from hindcast.store.entries import Stored
from hindcast.store.spaces import space_to_json
from hindcast.store.statistics import Distribution
from hindcast.store.validate import describe_fault, find_fault, leaf_spaces_of, outside_bounds

SAMPLE_STEPS = 1_000_000
_MAX_DIMENSIONS = 64
_STEPS_TO_JUDGE = 20
_LOOKED_AT = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)

Severity = Literal["error", "warning", "info"]


class Problem(Stored):
    """Something to know: an "error" stops training, a "warning" may spoil it, an "info" explains."""

    severity: Severity
    message: str


class ActionLeaf(Stored):
    """How one action leaf is used.

    Attributes:
        name: of the leaf.
        values: how often each value of a Discrete action occurs.
        dimensions: distribution of each dimension of any other action (the first 64).
    """

    name: str
    values: dict[int, int] | None = None
    dimensions: tuple[Distribution, ...] = ()


class Summary(Stored):
    """A picture of a dataset. Sizes and lengths are of all of it, the rest of the episodes sampled.

    Attributes:
        episodes: in all.
        timesteps: in all.
        bytes: size in memory.
        files: how many.
        digest: of the dataset.
        environment: id, where known.
        observation_space: as JSON, where known.
        action_space: as JSON, where known.
        columns: leaf name -> what it holds.
        sampled_episodes: those looked at.
        sampled_timesteps: their steps.
        lengths: of all episodes.
        returns: undiscounted.
        rewards: per timestep.
        zero_rewards: share of timesteps whose reward is 0.
        actions: per leaf.
        terminated: share of episodes that the environment ended.
        truncated: share that were cut off.
        has_logp: whether the behaviour's log-probabilities were recorded.
        problems: worst first.
    """

    episodes: int
    timesteps: int
    bytes: int
    files: int
    digest: str
    environment: str | None
    observation_space: dict[str, Any] | None
    action_space: dict[str, Any] | None
    columns: dict[str, str]
    sampled_episodes: int
    sampled_timesteps: int
    lengths: Distribution | None
    returns: Distribution | None
    rewards: Distribution | None
    zero_rewards: float | None
    actions: tuple[ActionLeaf, ...]
    terminated: float
    truncated: float
    has_logp: bool
    problems: tuple[Problem, ...]


def summarise(dataset: Dataset, sample_limit: int = SAMPLE_STEPS) -> Summary:
    """Look at a dataset, reading units spread evenly over it one at a time.

    Args:
        dataset: what to look at.
        sample_limit: about how many timesteps to read; at least one unit is read.

    Raises:
        DataError: a file that is damaged.
    """
    spec = dataset.spec
    sample = _Sample(dataset)
    for unit in sample_units(dataset.units, sample_limit):
        sample.add(unit)
    rewards = sample.column(Columns.REWARDS)
    return Summary(
        episodes=dataset.num_episodes,
        timesteps=dataset.num_steps,
        bytes=dataset.nbytes,
        files=len({part.path for unit in dataset.units for part in unit.parts}),
        digest=dataset.digest,
        environment=spec.environment,
        observation_space=space_to_json(spec.observation_space)
        if spec.observation_space is not None
        else None,
        action_space=space_to_json(spec.action_space) if spec.action_space is not None else None,
        columns={name: str(leaf) for name, leaf in spec.leaves.items()},
        sampled_episodes=sample.episodes,
        sampled_timesteps=sample.steps,
        lengths=Distribution.of(np.concatenate([unit.lengths for unit in dataset.units])),
        returns=Distribution.of(np.concatenate(sample.returns)) if sample.returns else None,
        rewards=Distribution.of(rewards) if rewards is not None else None,
        zero_rewards=float((rewards == 0).mean()) if rewards is not None and len(rewards) else None,
        actions=tuple(_action_leaves(sample)),
        terminated=sample.terminated / sample.episodes,
        truncated=sample.truncated / sample.episodes,
        has_logp=Columns.ACTION_LOGP in spec.leaves,
        problems=tuple(_problems(sample, rewards)),
    )


def sample_units(units: Sequence[Unit], sample_limit: int) -> list[Unit]:
    """Units spread evenly over the dataset, of about `sample_limit` steps together; at least one."""
    steps = sum(int(unit.lengths.sum()) for unit in units)
    count = max(1, min(len(units), len(units) * sample_limit // max(1, steps)))
    chosen = np.linspace(0, len(units) - 1, count).round().astype(int)
    return [units[i] for i in chosen]


class _Sample:
    """What is kept of the units read: small columns whole, observations as ranges, faults as sentences."""

    def __init__(self, dataset: Dataset) -> None:
        self.spec = dataset.spec
        self.notes = dataset.notes
        self.spaces = leaf_spaces_of(self.spec, self.spec.observation_space, self.spec.action_space)
        self.episodes = self.steps = self.empty = 0
        self.terminated = self.truncated = self.both = self.neither = 0
        self.returns: list[NDArray[np.float64]] = []
        self.faults: dict[str, str] = {}
        self.ids: dict[str, int] = {}
        self.ranges: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
        self._dataset = dataset
        self._kept: dict[str, list[NDArray[Any]]] = {}

    def add(self, unit: Unit) -> None:
        """Read and digest a unit."""
        there = {root(leaf) for leaf in self.spec.leaves}
        block = self._dataset.read(unit, [column for column in _LOOKED_AT if column in there])
        self._count(block)
        for name, column in block.columns.items():
            self._look(block, name, column, unit)
            if root(name) != Columns.OBS:
                self._kept.setdefault(name, []).append(column)
        if Columns.REWARDS in block.columns:
            sums = np.concatenate([[0.0], np.cumsum(block.columns[Columns.REWARDS], dtype=np.float64)])
            self.returns.append(sums[block.start + block.length] - sums[block.start])

    def column(self, name: str) -> NDArray[Any] | None:
        """A kept column of all units read."""
        parts = self._kept.get(name)
        return np.concatenate(parts) if parts else None

    def _count(self, block: Block) -> None:
        self.episodes += block.num_episodes
        self.steps += block.num_steps
        self.empty += int((block.length == 0).sum())
        self.terminated += int(block.terminated.sum())
        self.truncated += int(block.truncated.sum())
        self.both += int((block.terminated & block.truncated).sum())
        self.neither += int((~block.terminated & ~block.truncated).sum())
        for eps_id in block.eps_id:
            self.ids[eps_id] = self.ids.get(eps_id, 0) + 1

    def _look(self, block: Block, name: str, column: NDArray[Any], unit: Unit) -> None:
        if name not in self.faults:
            fault = find_fault(name, column, self.spaces.get(name), check_bounds=False)
            if fault is not None:
                self.faults[name] = describe_fault(
                    block, name, fault, lambda episode: self._dataset.locate(unit, episode)
                )
        if root(name) == Columns.OBS and column.ndim == 2 and len(column):
            low, high = column.min(axis=0), column.max(axis=0)
            if name in self.ranges:
                low, high = np.minimum(low, self.ranges[name][0]), np.maximum(high, self.ranges[name][1])
            self.ranges[name] = (low, high)


def _action_leaves(sample: _Sample) -> Iterator[ActionLeaf]:
    for name in leaves_of(Columns.ACTIONS, list(sample.spec.leaves)):
        column = sample.column(name)
        if column is None or column.dtype == object or not len(column):
            continue
        if isinstance(sample.spaces.get(name), spaces.Discrete):
            values, counts = np.unique(column, return_counts=True)
            yield ActionLeaf(name=name, values=dict(zip(values.tolist(), counts.tolist(), strict=True)))
            continue
        dimensions = column.reshape(len(column), -1)[:, :_MAX_DIMENSIONS].T
        found = [Distribution.of(dimension) for dimension in dimensions]
        yield ActionLeaf(name=name, dimensions=tuple(part for part in found if part is not None))


def _problems(sample: _Sample, rewards: NDArray[Any] | None) -> Iterator[Problem]:
    """What is wrong or worth knowing, worst first."""
    for sentence in sample.faults.values():
        yield Problem(severity="error", message=sentence)
    for message in _warnings(sample, rewards):
        yield Problem(severity="warning", message=message)
    for message in (*sample.notes, *_remarks(sample)):
        yield Problem(severity="info", message=message)


def _warnings(sample: _Sample, rewards: NDArray[Any] | None) -> Iterator[str]:
    twice = [eps_id for eps_id, count in sample.ids.items() if count > 1]
    if twice:
        yield f"{len(twice)} episode ids occur more than once (first: {twice[0]}): episodes may be duplicated"
    if sample.empty:
        yield f"{sample.empty} of {sample.episodes} episodes have no timesteps"
    if sample.both:
        yield f"{sample.both} of {sample.episodes} episodes are both terminated and truncated"
    if rewards is not None and len(rewards) and not rewards.any():
        yield f"all {len(rewards)} sampled rewards are 0"


def _remarks(sample: _Sample) -> Iterator[str]:
    if sample.neither:
        yield (
            f"{sample.neither} of {sample.episodes} episodes end neither terminated nor truncated: "
            "they count as cut off"
        )
    for name, (low, high) in sample.ranges.items():
        constant = np.flatnonzero(low == high).tolist()
        if constant and sample.steps > _STEPS_TO_JUDGE:
            which = _shortened(constant)
            yield f"{name!r} never changes in {len(constant)} of {len(low)} dimensions ({which})"
    for name in leaves_of(Columns.ACTIONS, list(sample.spec.leaves)):
        column, space = sample.column(name), sample.spaces.get(name)
        share = outside_bounds(column, space) if column is not None and space is not None else 0.0
        if share:
            yield (
                f"{share:.1%} of {name!r} lie outside the bounds of the space: "
                "they were recorded before scaling or clipping"
            )
    if Columns.ACTION_LOGP not in sample.spec.leaves:
        yield f"there is no {Columns.ACTION_LOGP!r}: estimators that weigh by importance cannot be used"


def _shortened(numbers: list[int], most: int = 8) -> str:
    return ", ".join(str(number) for number in numbers[:most]) + (", …" if len(numbers) > most else "")
