"""`Dataset`, recorded episodes in units of about 16 MiB in a fixed order, and `View`, episodes of other datasets."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.api.filter_term import parse_filter
from hindcast.api.input import FilterTerm
from hindcast.datasets.episode_table import EPISODE_FIELDS, RETURN_FIELD, EpisodeTable
from hindcast.datasets.sources import map_in_threads
from hindcast.datasets.units import EpisodeLocation, Unit, episode_lengths, unit_sizes
from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError, SpecError
from hindcast.formats.dataset_folder.manifest import digest_of
from hindcast.formats.spec import DataSpec

Episodes = NDArray[Any] | Sequence[int] | Sequence[bool]


class Dataset(ABC):
    """A dataset of recorded episodes. Its subsets (`select`, `split`, `filter`, `sample`) read the same files.

    Attributes:
        spec: leaves, spaces and environment of the episodes.
        units: all units, in the dataset's order.
        digest: sha256 (hex) that changes with the data.
        notes: sentences about the data for the user.
    """

    spec: DataSpec
    units: Sequence[Unit]
    digest: str
    notes: tuple[str, ...]

    @cached_property
    def num_episodes(self) -> int:
        """Number of episodes; an episode that is stored in fragments counts once."""
        return len(episode_lengths(self.units))

    @cached_property
    def num_steps(self) -> int:
        """Number of timesteps."""
        return int(episode_lengths(self.units).sum(dtype=np.int64))

    @cached_property
    def nbytes(self) -> int:
        """Approximate size in memory."""
        return int(unit_sizes(self.units).nbytes.sum())

    @abstractmethod
    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """Read the complete episodes of a unit, with fragments joined.

        Args:
            unit: one of `units`.
            columns: names of columns (`obs` means all its leaves) or of leaves; all by default.

        Raises:
            DataError: a file is damaged, or the dataset does not have a column.
        """

    @abstractmethod
    def locate(self, unit: Unit, episode: int) -> EpisodeLocation:
        """Return the stored location of an episode, given its index in the block that `read` returns for the unit."""

    @abstractmethod
    def extract(self, unit: Unit) -> Dataset:
        """Return a dataset that can `read` and `locate` only this unit, without the index of the other files."""

    def indexed_table(self) -> EpisodeTable | None:
        """Return the table that the files' indices have, with NaN for unknown returns; None if a file has no index."""
        return None

    def select(self, episodes: Episodes) -> View:
        """Select episodes, in the dataset's order.

        Args:
            episodes: `[num_episodes]` booleans, or indices in any order, each once.

        Raises:
            DataError: there is not one boolean for each episode, or an index is out of range or repeated.
        """
        indices = _to_indices(episodes, self.num_episodes)
        starts = np.concatenate([[0], np.cumsum(unit_sizes(self.units).episodes)])
        boundaries = np.searchsorted(indices, starts)
        origins = [
            UnitOrigin(self, self.units[i], indices[boundaries[i] : boundaries[i + 1]] - starts[i])
            for i in np.flatnonzero(np.diff(boundaries)).tolist()
        ]
        # Little-endian, so that the digest is the same on every machine.
        digest = digest_of([self.digest, digest_of([indices.astype("<i8").tobytes().hex()])])
        return View(self.spec, [self], origins, digest)

    def without(self, leaves: Collection[str]) -> View:
        """Return the same episodes without some leaves; names that the dataset does not have are ignored.

        The view's spec lacks these leaves, but `read` still returns one that its argument `columns` names.
        """
        remaining_leaves = {name: leaf for name, leaf in self.spec.leaves.items() if name not in leaves}
        origins = [UnitOrigin(self, unit, np.arange(len(unit.lengths))) for unit in self.units]
        digest = digest_of([self.digest, "without", *sorted(leaves)])
        return View(replace(self.spec, leaves=remaining_leaves), [self], origins, digest)

    def split(self, fraction: float, seed: int = 0) -> tuple[View, View]:
        """Split the episodes in two, such as for training and validation.

        The split depends on the seed and the episodes' ids, not on layout, files or order. Episodes with the same id
        stay together, such as the fragments of an episode from which a filter removed rows.

        Args:
            fraction: fraction of the episodes in the second view, rounded so that episodes of one id stay together.
            seed: a different seed gives a different split.

        Returns:
            A view of the remaining episodes, and a view of the fraction.

        Raises:
            SpecError: the fraction is not between 0 and 1.
        """
        _check_fraction("fraction", fraction)
        mask = self.episode_table().split_mask(round(fraction * self.num_episodes), seed)
        return self.select(~mask), self.select(mask)

    def filter(self, *terms: FilterTerm | str, top: float | None = None) -> View:
        """Select the episodes that satisfy all terms, such as `"return >= 100"` and `"length > 10"`.

        Args:
            terms: comparisons of `return` (sum of rewards), `length`, `terminated`, `truncated` or `eps_id`.
            top: select only this fraction of the matching episodes, by highest return, rounded up; of episodes with
                equal returns, the earlier ones.

        Raises:
            DataError: returns are compared, and the data have no rewards.
            SpecError: a term cannot be parsed, a field is unknown, or the fraction is not between 0 and 1.
        """
        parsed_terms = [_parse_episode_term(term) for term in terms]
        table = self.episode_table(
            top is not None or any(term.column == RETURN_FIELD for term in parsed_terms)
        )
        mask = np.ones(len(table.length), dtype=np.bool_)
        for term in parsed_terms:
            mask &= table.satisfies(term)
        indices = np.flatnonzero(mask)
        if top is not None:
            _check_fraction("top", top)
            assert table.returns is not None
            by_return = np.argsort(-table.returns[indices], kind="stable")
            indices = indices[by_return[: math.ceil(top * len(indices))]]
        return self.select(indices)

    def sample(
        self,
        episodes: int | None = None,
        *,
        timesteps: int | None = None,
        fraction: float | None = None,
        seed: int = 0,
    ) -> View:
        """Draw random episodes without replacement; as in `split`, the draw depends on the seed and the episodes' ids.

        Args:
            episodes: number of episodes.
            timesteps: draw until this many timesteps are reached.
            fraction: fraction of the episodes, rounded to complete episodes.
            seed: a different seed draws different episodes.

        Raises:
            SpecError: not exactly one of the three sizes is set, a number is less than 1 or more than the dataset has,
                or the fraction is not between 0 and 1.
        """
        if sum(option is not None for option in (episodes, timesteps, fraction)) != 1:
            raise SpecError("a sample requires exactly one of episodes, timesteps and fraction")
        for unit_name, count, available in (
            ("episodes", episodes, self.num_episodes),
            ("timesteps", timesteps, self.num_steps),
        ):
            if count is not None and not 0 < count <= available:
                raise SpecError(
                    f"a sample of {count:,} {unit_name} cannot be drawn: expected a number from 1 to {available:,}, "
                    "the number in the data"
                )
        table = self.episode_table()
        order = table.shuffled_order(seed)
        if timesteps is not None:
            cumulative_steps = np.cumsum(table.length[order])
            return self.select(order[: int(np.searchsorted(cumulative_steps, timesteps)) + 1])
        if fraction is not None:
            _check_fraction("fraction", fraction)
            episodes = round(fraction * self.num_episodes)
        return self.select(order[:episodes])

    def episode_table(self, with_returns: bool = False) -> EpisodeTable:
        """Return one row per episode, in order; nothing is read if the files have an index of episodes.

        Otherwise the ids of all episodes are read; of the timesteps, at most the rewards.

        Args:
            with_returns: whether to sum the rewards.

        Raises:
            DataError: returns are requested and the data have no rewards.
        """
        if with_returns and Columns.REWARDS not in self.spec.leaves:
            raise DataError(
                f"the data have no rewards, so no returns: they have {', '.join(self.spec.leaves)}"
            )
        table = self.indexed_table()
        if table is not None:
            returns = table.returns if with_returns else None
            if returns is None or not np.isnan(returns).any():
                return table._replace(returns=returns)
        leaves = [Columns.REWARDS] if with_returns else []
        tables = map_in_threads(
            lambda unit: EpisodeTable.from_block(self.read(unit, leaves), with_returns), self.units
        )
        return EpisodeTable.concat(tables, with_returns)


class UnitOrigin(NamedTuple):
    """The source of a view's unit.

    Attributes:
        dataset: the source dataset.
        unit: the unit of the source dataset.
        episodes: indices of the selected episodes in the source unit, increasing.
        new_ids: index of an episode in the source unit -> its id in the view, for episodes whose id is changed.
    """

    dataset: Dataset
    unit: Unit
    episodes: I64
    new_ids: Mapping[int, str] = {}

    def make_unit(self, unit_id: int) -> Unit:
        """Make the view's unit; its size is the source unit's, in proportion to the timesteps."""
        lengths = self.unit.lengths[self.episodes]
        nbytes = self.unit.nbytes * int(lengths.sum()) // max(1, int(self.unit.lengths.sum()))
        return Unit(unit_id, self.unit.parts, lengths, nbytes)


class View(Dataset):
    """Episodes of other datasets. A source unit is read in full, then the selected episodes are taken.

    Args:
        spec: leaves of the view, which `read` reads by default.
        datasets: the source datasets.
        origins: the source of each unit, in order.
        digest: see `Dataset`.
        notes: notes in addition to those of the source datasets.
    """

    def __init__(
        self,
        spec: DataSpec,
        datasets: Sequence[Dataset],
        origins: Sequence[UnitOrigin],
        digest: str,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.spec = spec
        self.digest = digest
        self.notes = (*(note for dataset in datasets for note in dataset.notes), *notes)
        self.units = tuple(origin.make_unit(unit_id) for unit_id, origin in enumerate(origins))
        # By the unit's id: `extract` replaces the sequence by a mapping with one id.
        self._origins: Mapping[int, UnitOrigin] | Sequence[UnitOrigin] = origins

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """See `Dataset.read`; JSON leaves that the source dataset lacks are empty."""
        dataset, source_unit, episodes, new_ids = self._origins[unit.id]
        column_names = set(self.spec.leaves if columns is None else columns)
        leaves = [leaf for leaf in self.spec.leaves if {leaf, root(leaf)} & column_names]
        missing_leaves = [leaf for leaf in leaves if leaf not in dataset.spec.leaves]
        # Names that the view does not know are passed on: the source's error for them names its files.
        unknown_names = column_names.difference(leaves, map(root, leaves))
        block = dataset.read(source_unit, unknown_names.union(leaves).difference(missing_leaves))
        if len(episodes) < block.num_episodes:
            block = block.take(episodes)
        if missing_leaves:
            # Only infos can be missing: `merge` refuses datasets that differ in any other leaf. Infos have a value for
            # each observation, and an episode has one observation more than timesteps.
            empty_texts = np.full(block.num_steps + block.num_episodes, "", dtype=object)
            block = block.with_columns({**block.columns, **dict.fromkeys(missing_leaves, empty_texts)})
        if new_ids:
            eps_ids = [
                new_ids.get(episode, eps_id)
                for episode, eps_id in zip(episodes.tolist(), block.eps_id, strict=True)
            ]
            block = replace(block, eps_id=np.array(eps_ids, dtype=object))
        return block

    def locate(self, unit: Unit, episode: int) -> EpisodeLocation:
        """See `Dataset.locate`."""
        dataset, source_unit, episodes, _ = self._origins[unit.id]
        return dataset.locate(source_unit, int(episodes[episode]))

    def indexed_table(self) -> EpisodeTable | None:
        """See `Dataset.indexed_table`."""
        tables: list[EpisodeTable] = []
        # id of a dataset -> row in the joined tables at which each of its units starts
        starts: dict[int, I64] = {}
        rows, new_ids, num_rows, num_episodes = [np.empty(0, np.int64)], {}, 0, 0
        for unit in self.units:
            dataset, source_unit, episodes, unit_ids = self._origins[unit.id]
            if id(dataset) not in starts:
                table = dataset.indexed_table()
                if table is None:
                    return None
                starts[id(dataset)] = np.cumsum([num_rows, *unit_sizes(dataset.units).episodes])
                tables.append(table)
                num_rows += len(table.length)
            rows.append(starts[id(dataset)][source_unit.id] + episodes)
            for episode, new_id in unit_ids.items():
                new_ids[num_episodes + int(np.searchsorted(episodes, episode))] = new_id
            num_episodes += len(episodes)
        view_table = EpisodeTable.concat(tables, with_returns=True).take(np.concatenate(rows))
        view_table.eps_id[list(new_ids)] = list(new_ids.values())
        return view_table

    def extract(self, unit: Unit) -> Dataset:
        """See `Dataset.extract`."""
        origin, part = self._origins[unit.id], copy.copy(self)
        part.units, part._origins = (
            (unit,),
            {unit.id: origin._replace(dataset=origin.dataset.extract(origin.unit))},
        )
        return part


def _to_indices(episodes: Episodes, num_episodes: int) -> I64:
    """Return the indices of selected episodes, increasing; see `Dataset.select`."""
    selection = np.asarray(episodes)
    if selection.dtype == np.bool_:
        if selection.shape != (num_episodes,):
            raise DataError(
                f"the selection has {len(selection):,} booleans, expected one for each of {num_episodes:,} episodes"
            )
        return np.flatnonzero(selection)
    indices = np.unique(selection.astype(np.int64))
    if len(indices) != selection.size:
        raise DataError("an episode was selected twice: give each index once")
    if len(indices) and (indices[0] < 0 or indices[-1] >= num_episodes):
        invalid_index = indices[0] if indices[0] < 0 else indices[-1]
        raise DataError(
            f"episode {invalid_index} was selected: the data have {num_episodes:,} episodes, counted from 0"
        )
    return indices


def _parse_episode_term(term: FilterTerm | str) -> FilterTerm:
    filter_term = parse_filter(term) if isinstance(term, str) else term
    if filter_term.column not in EPISODE_FIELDS:
        raise SpecError(
            f"{filter_term.column!r} is not a field of an episode: allowed are {', '.join(EPISODE_FIELDS)}"
        )
    return filter_term


def _check_fraction(name: str, fraction: float) -> None:
    if not 0 < fraction < 1:
        raise SpecError(f"{name} is {fraction:g}: expected a number between 0 and 1, excluding both")
