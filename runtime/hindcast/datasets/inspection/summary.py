"""The summary of a dataset, as `hindcast inspect --json` prints it: statistics and problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from pydantic import Field, SkipValidation

from hindcast import formatting
from hindcast.datasets.inspection.statistics import ValueDistribution
from hindcast.errors import DataError
from hindcast.formats.entries import JsonModel
from hindcast.formats.layout import RowError

Origin = Literal["recorded", "guessed"]
Severity = Literal["error", "warning", "info"]
ProblemKind = Literal[
    "unreadable",
    "missing",
    "changed",
    "mixed-layouts",
    "drift",
    "other-lengths",
    "other-space",
    "goes-on",
    "not-finite",
    "missing-values",
    "outside-space",
    "wrong-units",
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

DataAnswer = Literal["improve", "clone", "unusable"]
_CLAIMS: Final[dict[DataAnswer, str]] = {
    "improve": "RL can improve on the recorded policy",
    "clone": "clone only",
    "unusable": "not usable",
}
_SEVERITY_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


class DataProblem(JsonModel):
    """A problem of data: an "error" prevents training, a "warning" may make it worse, an "info" is only a remark.

    Attributes:
        severity: "error", "warning" or "info".
        kind: stable name of the problem; docs/data/inspect.md says what to do about each.
        message: one sentence.
        path: the file that has the problem; None if it is not about one file.
        row: index of the row in that file; None if it is not about one row.
    """

    severity: Severity
    kind: ProblemKind = "note"
    message: str
    path: str | None = None
    row: int | None = None


def make_file_problem(path: str, error: DataError) -> DataProblem:
    """Make the problem of a file that cannot be read, with the error's kind and row, if any."""
    kind: ProblemKind = error.kind if isinstance(error, RowError) else "unreadable"
    message, row = str(error.locate(path=path)), error.problems[0].row
    return DataProblem(severity="error", kind=kind, message=message, path=path, row=row)


def sort_by_severity(problems: Iterable[DataProblem]) -> tuple[DataProblem, ...]:
    """Sort problems: errors, warnings, infos; stable within each."""
    return tuple(sorted(problems, key=lambda problem: _SEVERITY_ORDER[problem.severity]))


class ActionLeaf(JsonModel):
    """Statistics of one action leaf.

    Attributes:
        name: name of the leaf.
        values: value -> number of times that it occurs; None if the action is not Discrete, or has over 10,000 values.
        dimensions: distribution of each dimension with finite values (of at most 64 dimensions, spread evenly), if
            `values` is None.
        dimension_names: name of each of these dimensions, such as the column of a table.
    """

    name: str
    values: dict[int, int] | None = None
    dimensions: tuple[ValueDistribution, ...] = ()
    dimension_names: tuple[str, ...] = ()


class ObservationLeaf(JsonModel):
    """The ranges of one observation leaf.

    Attributes:
        name: name of the leaf.
        dimensions: number of dimensions.
        shown_dimensions: the dimensions that the lists below describe: all, or 64 spread evenly.
        low: minimum of each shown dimension.
        high: maximum of each shown dimension.
        share_of_space: range of each shown dimension as a fraction of the space's range; None if the space is unbounded
            or no Box.
        constant_dimensions: number of dimensions, among all, that never change.
        values_seen: number of different values that occur; None if the space is not Discrete.
        values: number of values in the space; None if the space is not Discrete.
        dimension_names: name of each shown dimension, such as the column of a table.
        missing: share of the timesteps that lack the value (NaN) of each shown dimension.
        is_image: whether the values are images.
    """

    name: str
    dimensions: int
    shown_dimensions: tuple[int, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    share_of_space: tuple[float | None, ...]
    constant_dimensions: int
    values_seen: int | None = None
    values: int | None = None
    dimension_names: tuple[str, ...] = ()
    missing: tuple[float, ...] = ()
    is_image: bool = False

    @property
    def image_range(self) -> str:
        """The values of an image in words."""
        bounds = [bound for bound in (*self.low, *self.high) if bound is not None]
        if not bounds:
            return "no finite values"
        return f"values from {formatting.significant(min(bounds))} to {formatting.significant(max(bounds))}"


class Coverage(JsonModel):
    """The coverage of observations: counts in a grid over their first two principal components.

    Each dimension is divided by its standard deviation first, so units do not matter. The grid spans the recorded
    range. Discrete observations are not included: they have no distances.

    Attributes:
        observations: number of observations.
        side: number of cells along each component.
        occupied_share: fraction of cells with at least one observation.
        evenness: entropy of the counts as a fraction of the entropy of equal counts, in [0, 1].
        explained_variance: fraction of the variance that the components explain.
        counts: `[side, side]` number of observations in each cell, one row per cell of the first component; `[side, 1]`
            if the grid has one dimension.
    """

    observations: int
    side: int
    occupied_share: float
    evenness: float
    explained_variance: float
    counts: tuple[tuple[int, ...], ...]


class DataVerdict(JsonModel):
    """What recorded data allow a training to do.

    Attributes:
        answer: "improve" if reinforcement learning can improve on the recorded policy, "clone" if the data only allow
            to imitate it, "unusable" if neither.
        reasons: what the answer rests on, one clause each, the decisive one first.
        episodes: number of episodes.
        variation: share of the actions' variance that the state does not explain, 0 to 1; None if not measured.
        effect: share of the variance of the rewards that follow which the action explains and the state does not; None
            if not measured.
        significance: the effect in standard errors; None if not measured.
        effective_episodes: effective episodes by which a policy can be judged that takes a tenth of its actions at
            random; None without log-probabilities of Discrete actions.
    """

    answer: DataAnswer
    reasons: tuple[str, ...]
    episodes: int
    variation: float | None = None
    effect: float | None = None
    significance: float | None = None
    effective_episodes: float | None = None

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return f"{_CLAIMS[self.answer]}: {'; '.join(self.reasons)}"


class ColumnProfile(JsonModel):
    """A column of a table, as its first rows show it.

    Attributes:
        name: name of the column.
        type: type of its values, in Arrow's words.
        missing: share of the rows that have no value (null or NaN).
        constant: whether all rows that have a value have the same.
        example: a value; empty if there is none.
        role: Hindcast's name of what the column may be, such as "rewards"; None if it is not read.
    """

    name: str
    type: str
    missing: float
    constant: bool
    example: str
    role: str | None


class Summary(JsonModel):
    """The summary of a dataset.

    Sizes and lengths cover all episodes, flags the checked episodes, and other statistics the sampled episodes.

    Attributes:
        layouts: names of the files' layouts or formats.
        prepared_path: folder of the prepared copy that the summary describes; None if the data are opened directly.
        episodes: number of episodes.
        timesteps: number of timesteps.
        bytes: size in memory.
        stored_bytes: size of the files.
        files: number of usable files.
        digest: digest of the dataset.
        environment: id of the environment, if known.
        observation_space: the space as JSON; None if it is not recorded and cannot be guessed.
        action_space: the space as JSON; None if it is not recorded and cannot be guessed.
        observation_space_from: "recorded", or "guessed" from dtypes, shapes and values.
        action_space_from: "recorded", or "guessed" from dtypes, shapes and values.
        columns: leaf name -> description of its values.
        sampled_episodes: number of episodes read.
        sampled_timesteps: number of their timesteps.
        checked_episodes: number of episodes whose ids and flags were read.
        lengths: distribution of the lengths of all episodes.
        returns: distribution of undiscounted returns.
        rewards: distribution of rewards per timestep.
        zero_rewards: fraction of timesteps with reward 0.
        rewarded_episodes_share: fraction of episodes with a reward other than 0.
        observations: statistics of each numeric leaf of the observations.
        coverage: coverage of all observations together; None if no dimension varies, or all are Discrete.
        actions: statistics of each numeric leaf of the actions.
        terminated: fraction of the checked episodes that the environment ended.
        truncated: fraction of the checked episodes that were cut off.
        table_columns: columns of the first table, as its first rows show them; empty if the data are no table.
        has_logp: whether the recorded policy's log-probabilities are in the data.
        problems: problems, worst first.
        verdict: what the data allow a training to do; None if it was not asked for.
        frames: leaf name -> images of an episode, of each leaf of observations that are images; not in the JSON.
    """

    layouts: tuple[str, ...]
    prepared_path: str | None = None
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
    rewarded_episodes_share: float | None
    observations: tuple[ObservationLeaf, ...]
    coverage: Coverage | None
    actions: tuple[ActionLeaf, ...]
    terminated: float
    truncated: float
    has_logp: bool
    table_columns: tuple[ColumnProfile, ...] = ()
    problems: tuple[DataProblem, ...]
    verdict: DataVerdict | None = None
    frames: SkipValidation[Mapping[str, Any]] = Field(default={}, exclude=True)
