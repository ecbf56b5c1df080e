"""Read a sample of a dataset, spread evenly over it, one unit at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.episode_table import compute_returns
from hindcast.datasets.inspection.frames import Frames, choose_frames
from hindcast.datasets.inspection.leaf_values import LeafValues
from hindcast.datasets.inspection.summary import DataProblem, ProblemKind, Severity, make_file_problem
from hindcast.datasets.units import EpisodeLocation, Unit, unit_sizes
from hindcast.datasets.validate import Locator, check_scalar_columns, check_spec, get_leaf_spaces
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, leaves_of, root
from hindcast.errors import DataError
from hindcast.formats.arrow.layout import ARROW_EPISODES

SAMPLE_STEPS = 1_000_000
"""Default of the approximate number of timesteps in a sample."""
_SAMPLE_BYTES = 1 << 30
_MIN_UNITS = 8
_MAX_UNITS_FOR_FLAGS = 2_000
"""Number of units up to which ids and flags outside the sample are read, too."""
_INSPECTED_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_LOGP)
# Kind and severity of a problem of episodes, and the clause after "2 of 30 episodes have".
_DESCRIPTIONS: Final[tuple[tuple[ProblemKind, Severity, str], ...]] = (
    ("empty-episode", "warning", "no timesteps"),
    ("ended-twice", "warning", "both a terminal state and a cut, which count as a terminal state"),
    ("no-beginning", "warning", "no beginning, but a first timestep after t = 0"),
    ("unfinished", "info", "neither a terminal state nor a cut at the end, which counts as a cut"),
)

Progress = Callable[[int, int], None]
"""Called with the number of units done and the number of units."""


def sample_units(units: Sequence[Unit], sample_limit: int | None) -> list[Unit]:
    """Choose units spread evenly over the dataset.

    Args:
        units: all units of the dataset.
        sample_limit: approximate number of timesteps in the sample; None chooses all units. The sample has at most
            1 GiB, but at least eight units.
    """
    if sample_limit is None or not units:
        return list(units)
    sizes = unit_sizes(units)
    num_steps, nbytes = int(sizes.steps.sum()), int(sizes.nbytes.sum())
    fraction = min(1.0, sample_limit / max(1, num_steps), _SAMPLE_BYTES / max(1, nbytes))
    count = min(len(units), max(_MIN_UNITS, int(len(units) * fraction)))
    indices = np.linspace(0, len(units) - 1, count).round().astype(int)
    return [units[i] for i in indices.tolist()]


class Sample:
    """Statistics and problems of the sampled units, which are read on construction.

    Args:
        dataset: the dataset.
        sample_limit: approximate number of timesteps to read; None reads all.
        progress: called after each unit.

    Attributes:
        dataset: the dataset.
        episode_statistics: statistics of all episodes whose ids and flags were read.
        problems: problems of files and of the spec.
        returns: `[N]` returns of each unit's episodes, of units with one reward per timestep.
        num_episodes: number of sampled episodes.
        num_steps: number of their timesteps.
        num_rewarded_episodes: number of sampled episodes with a reward other than 0.
        frames: leaf name -> images of the first episode with steps, of each leaf of observations that are images.
        leaves: name -> statistics of each numeric leaf of `_INSPECTED_COLUMNS`.
    """

    def __init__(
        self, dataset: EpisodeDataset, sample_limit: int | None, progress: Progress | None = None
    ) -> None:
        self.dataset = dataset
        self.episode_statistics = EpisodeStatistics()
        self.problems: list[DataProblem] = []
        self.returns: list[NDArray[np.float64]] = []
        self.num_episodes = self.num_steps = self.num_rewarded_episodes = 0
        self.frames: dict[str, Frames] = {}
        leaf_spaces = self._find_leaf_spaces()
        numeric_leaves = [name for name, leaf in dataset.spec.leaves.items() if leaf.dtype is not None]
        self.leaves = {
            name: LeafValues(name, dataset.spec.leaves[name], leaf_spaces.get(name))
            for name in numeric_leaves
            if root(name) in _INSPECTED_COLUMNS
        }
        self._columns = list(self.leaves) if sample_limit is not None else None
        self._read(sample_limit, progress)

    def _read(self, sample_limit: int | None, progress: Progress | None) -> None:
        sampled_ids = {unit.id for unit in sample_units(self.dataset.units, sample_limit)}
        # Ids and flags of all other episodes are read, too, if they are in separate columns, so that it costs little.
        can_read_flags = (
            self.dataset.layouts == (ARROW_EPISODES,) and len(self.dataset.units) <= _MAX_UNITS_FOR_FLAGS
        )
        for i in range(len(self.dataset.units)):
            if i in sampled_ids:
                self._add(self.dataset.units[i])
            elif can_read_flags:
                self._add_flags(self.dataset.units[i])
            if progress is not None:
                progress(i + 1, len(self.dataset.units))

    def _add(self, unit: Unit) -> None:
        block = self._read_block(unit, self._columns)
        if block is None:
            return
        locate = partial(self.dataset.locate, unit)
        self.num_episodes += block.num_episodes
        self.num_steps += block.num_steps
        self.episode_statistics.add(block, locate)
        for leaf in self.leaves.values():
            leaf.add(block, locate)
            if leaf.is_image and leaf.name not in self.frames and block.num_steps:
                episode = int(np.argmax(block.length > 0))
                images = block.columns[leaf.name][block.rows_of(leaf.name, episode)]
                first_timestep = int(block.t_started[episode])
                self.frames[leaf.name] = choose_frames(str(block.eps_id[episode]), images, first_timestep)
        rewards = block.columns.get(Columns.REWARDS)
        if rewards is not None and rewards.ndim == 1:
            self.returns.append(compute_returns(block))
            self.num_rewarded_episodes += int(
                np.count_nonzero(np.bincount(block.episode_of_step[rewards != 0]))
            )

    def _add_flags(self, unit: Unit) -> None:
        block = self._read_block(unit, [])
        if block is not None:
            self.episode_statistics.add(block, partial(self.dataset.locate, unit))

    def _read_block(self, unit: Unit, columns: Sequence[str] | None) -> Block | None:
        try:
            return self.dataset.read(unit, columns)
        except DataError as error:
            failures = list(self.dataset.unreadable_files(unit, columns)) or [(unit.parts[0].path, error)]
            known_paths = {problem.path for problem in self.problems}
            self.problems += [
                make_file_problem(path, failure) for path, failure in failures if path not in known_paths
            ]
            return None

    def _find_leaf_spaces(self) -> dict:
        """Return the recorded space of each leaf; if a leaf does not fit its space, add a problem and return {}."""
        spec = self.dataset.spec
        column_spaces = (
            spec.observation_space if leaves_of(Columns.OBS, spec.leaves) else None,
            spec.action_space if leaves_of(Columns.ACTIONS, spec.leaves) else None,
        )
        try:
            check_scalar_columns(spec, "the dataset")
            check_spec(spec, *column_spaces, "the dataset")
        except DataError as error:
            self.problems.append(DataProblem(severity="error", kind="other-space", message=str(error)))
            return {}
        return get_leaf_spaces(spec, *column_spaces)


class EpisodeStatistics:
    """Ids, lengths, flags and starts of episodes, added one block at a time."""

    def __init__(self) -> None:
        self.num_episodes = self.num_terminated = self.num_truncated = 0
        self._counts: Counter[ProblemKind] = Counter()
        self._first_cases: dict[ProblemKind, tuple[EpisodeLocation, str]] = {}  # with the episode's id
        self._ids: list[pa.Array] = []
        self._blocks: list[tuple[int, Locator]] = []  # with the number of episodes before each block

    def add(self, block: Block, locate: Locator) -> None:
        """Add the episodes of the next block."""
        self._ids.append(pa.array(block.eps_id, pa.large_string()))
        self._blocks.append((self.num_episodes, locate))
        self.num_episodes += block.num_episodes
        self.num_terminated += int(block.terminated.sum())
        self.num_truncated += int(block.truncated.sum())
        masks_by_kind: dict[ProblemKind, NDArray[np.bool_]] = {
            "ended-twice": block.terminated & block.truncated,
            "unfinished": ~block.terminated & ~block.truncated,
            "empty-episode": block.length == 0,
            "no-beginning": block.t_started > 0,
        }
        for kind, mask in masks_by_kind.items():
            if not mask.any():
                continue
            self._counts[kind] += int(mask.sum())
            if kind not in self._first_cases:
                episode = int(np.argmax(mask))
                self._first_cases[kind] = locate(episode), str(block.eps_id[episode])

    def problems(self) -> Iterator[DataProblem]:
        """Yield problems of the episodes' starts, ends and ids."""
        for kind, severity, description in _DESCRIPTIONS:
            if not self._counts[kind]:
                continue
            location, eps_id = self._first_cases[kind]
            count = f"{formatting.integer(self._counts[kind])} of {formatting.plural(self.num_episodes, 'episode')}"
            verb = "has" if self._counts[kind] == 1 else "have"
            message = f"{count} {verb} {description} (first: {eps_id}, {location})"
            yield DataProblem(
                severity=severity, kind=kind, message=message, path=location.path, row=location.row
            )
        yield from self._find_repeated_ids()

    def _find_repeated_ids(self) -> Iterator[DataProblem]:
        ids = pa.chunked_array(self._ids, pa.large_string())
        counts = ids.value_counts()
        repeated_ids = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        if not len(repeated_ids):
            return
        second_index = int(np.flatnonzero(pc.equal(ids, repeated_ids[0]).to_numpy())[1])
        first_of_block, locate = self._blocks[bisect_right(self._blocks, second_index, key=itemgetter(0)) - 1]
        location = locate(second_index - first_of_block)
        subject = "episode id occurs" if len(repeated_ids) == 1 else "episode ids occur"
        message = (
            f"{formatting.integer(len(repeated_ids))} {subject} more than once: episodes may be stored twice "
            f"(first: {repeated_ids[0]}, again in {location})"
        )
        yield DataProblem(
            severity="warning", kind="repeated-id", message=message, path=location.path, row=location.row
        )
