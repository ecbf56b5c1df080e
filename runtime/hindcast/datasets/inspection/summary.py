"""The document that inspecting a dataset gives, as `hindcast inspect --json` prints it: statistics and problems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from hindcast.datasets.inspection.statistics import ValueDistribution
from hindcast.errors import DataError
from hindcast.formats.entries import JsonModel
from hindcast.formats.layout import RowError

Origin = Literal["recorded", "guessed"]
Severity = Literal["error", "warning", "info"]
Kind = Literal[
    "unreadable",
    "missing",
    "changed",
    "mixed-layouts",
    "drift",
    "other-lengths",
    "other-space",
    "goes-on",
    "not-finite",
    "outside-space",
    "repeated-id",
    "ended-twice",
    "no-beginning",
    "empty-episode",
    "unfinished",
    "zero-rewards",
    "constant",
    "no-logp",
    "incomplete",
    "unlisted",
    "empty-file",
    "note",
]

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


class DataProblem(JsonModel):
    """Something to know: an "error" stops training, a "warning" may spoil it, an "info" explains.

    Attributes:
        severity: see above.
        kind: its stable name; docs/data/inspect.md says what to do about each.
        message: the sentence.
        path: the file, where there is one.
        row: row in the file, where there is one.
    """

    severity: Severity
    kind: Kind = "note"
    message: str
    path: str | None = None
    row: int | None = None


def problem_of(path: str, error: DataError) -> DataProblem:
    """The problem of a file that cannot be read, with its kind and row if the error has them."""
    kind: Kind = error.kind if isinstance(error, RowError) else "unreadable"
    row = error.row if isinstance(error, RowError) else None
    message = str(error) if path in str(error) else f"{path}: {error}"
    return DataProblem(severity="error", kind=kind, message=message, path=path, row=row)


def sort_by_severity(problems: Iterable[DataProblem]) -> tuple[DataProblem, ...]:
    """Errors, warnings, infos; otherwise in the order given."""
    return tuple(sorted(problems, key=lambda problem: _ORDER[problem.severity]))


class ActionLeaf(JsonModel):
    """How one action leaf is used.

    Attributes:
        name: of the leaf.
        values: how often each value of a Discrete action occurs.
        dimensions: distribution of each dimension of any other action (the first 64).
    """

    name: str
    values: dict[int, int] | None = None
    dimensions: tuple[ValueDistribution, ...] = ()


class ObservationLeaf(JsonModel):
    """What one observation leaf ranges over.

    Attributes:
        name: of the leaf.
        dimensions: how many numbers an observation has in it.
        shown: which of them the lists below are about: all, or 64 spread evenly.
        low: least value of each.
        high: greatest value of each.
        share_of_space: of each, `(high - low)` over the width of its bounds; None if the space has none.
        constant: how many of all dimensions never change.
        values_seen: of a Discrete observation, how many of its values occur.
        values: how many there are.
    """

    name: str
    dimensions: int
    shown: tuple[int, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    share_of_space: tuple[float | None, ...]
    constant: int
    values_seen: int | None = None
    values: int | None = None


class Coverage(JsonModel):
    """How much of the observations' plane is visited: a grid over their first two principal components.

    Each dimension is divided by its standard deviation first, so units do not matter. The grid spans what was
    observed. Discrete observations are not in it: they have no distances.

    Attributes:
        observations: how many the grid counts.
        side: cells along each component; `counts` is `[side, side]`, the first component along its rows.
        occupied: share of cells with any observation.
        evenness: entropy of the counts over that of an even spread, in [0, 1].
        explained: share of the variance in the two components.
        counts: observations in each cell.
    """

    observations: int
    side: int
    occupied: float
    evenness: float
    explained: float
    counts: tuple[tuple[int, ...], ...]


class Summary(JsonModel):
    """A picture of a dataset. Sizes and lengths are of all of it, the rest of the episodes sampled.

    Attributes:
        layouts: names of those found.
        prepared: folder of the episodes that were made of the data, which all here is about; None if the data are
            looked at as they are.
        episodes: in all.
        timesteps: in all.
        bytes: size in memory.
        stored_bytes: size of the files.
        files: how many can be used.
        digest: of the dataset.
        environment: id, where known.
        observation_space: as JSON; None if it is neither known nor can be guessed.
        action_space: likewise.
        observation_space_from: whether the data say it, or it was guessed from their dtypes, shapes and values.
        action_space_from: likewise.
        columns: leaf name -> what it holds.
        sampled_episodes: those looked at.
        sampled_timesteps: their steps.
        checked_episodes: those whose ids and ends were looked at.
        lengths: of all episodes.
        returns: undiscounted.
        rewards: per timestep.
        zero_rewards: share of timesteps whose reward is 0.
        rewarded_episodes: share of episodes with any reward that is not 0.
        observations: per leaf of numbers.
        coverage: of the observations together; None if none of their dimensions changes, and for Discrete ones.
        actions: per leaf.
        terminated: share of episodes that the environment ended.
        truncated: share that were cut off.
        has_logp: whether the behaviour's log-probabilities were recorded.
        problems: worst first.
    """

    layouts: tuple[str, ...]
    prepared: str | None = None
    episodes: int
    timesteps: int
    bytes: int
    stored_bytes: int
    files: int
    digest: str
    environment: str | None
    observation_space: dict[str, Any] | None
    action_space: dict[str, Any] | None
    observation_space_from: Origin | None
    action_space_from: Origin | None
    columns: dict[str, str]
    sampled_episodes: int
    sampled_timesteps: int
    checked_episodes: int
    lengths: ValueDistribution | None
    returns: ValueDistribution | None
    rewards: ValueDistribution | None
    zero_rewards: float | None
    rewarded_episodes: float | None
    observations: tuple[ObservationLeaf, ...]
    coverage: Coverage | None
    actions: tuple[ActionLeaf, ...]
    terminated: float
    truncated: float
    has_logp: bool
    problems: tuple[DataProblem, ...]
