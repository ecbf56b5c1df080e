"""Parts of a dataset as datasets: chosen, split, filtered or drawn by episode, and read from where they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import numpy as np

from hindcast.api.filter_term import parse_filter
from hindcast.api.input import FilterTerm
from hindcast.datasets.dataset import Dataset, Episodes
from hindcast.datasets.episode_table import FIELDS, RETURN, tabulate
from hindcast.datasets.units import Unit
from hindcast.episodes.block import I64, Block
from hindcast.errors import DataError, SpecError
from hindcast.formats.dataset_folder.manifest import digest_of


class Selectable:
    """What every `Dataset` can be made into. Nothing is copied: what comes out reads the same files."""

    def select(self, episodes: Episodes) -> Selection:
        """See `Dataset.select`."""
        return Selection(self._dataset, _indices(episodes, self._dataset.num_episodes))

    def split(self, fraction: float, seed: int = 0) -> tuple[Selection, Selection]:
        """See `Dataset.split`."""
        _check_fraction("fraction", fraction)
        count = round(fraction * self._dataset.num_episodes)
        order = tabulate(self._dataset).shuffled("split", seed)
        return self.select(order[count:]), self.select(order[:count])

    def filter(self, *terms: FilterTerm | str, top: float | None = None) -> Selection:
        """See `Dataset.filter`."""
        parsed = [_episode_term(term) for term in terms]
        with_returns = top is not None or any(term.column == RETURN for term in parsed)
        table = tabulate(self._dataset, with_returns)
        chosen = np.ones(len(table.length), dtype=np.bool_)
        for term in parsed:
            chosen &= table.holds(term)
        indices = np.flatnonzero(chosen)
        if top is not None:
            _check_fraction("top", top)
            assert table.returns is not None
            best = np.argsort(-table.returns[indices], kind="stable")
            indices = indices[best[: math.ceil(top * len(indices))]]
        return self.select(indices)

    def sample(
        self,
        episodes: int | None = None,
        *,
        timesteps: int | None = None,
        fraction: float | None = None,
        seed: int = 0,
    ) -> Selection:
        """See `Dataset.sample`."""
        dataset = self._dataset
        if sum(given is not None for given in (episodes, timesteps, fraction)) != 1:
            raise SpecError("a sample takes exactly one of episodes, timesteps and fraction")
        for what, given, there in (
            ("episodes", episodes, dataset.num_episodes),
            ("timesteps", timesteps, dataset.num_steps),
        ):
            if given is not None and not 0 < given <= there:
                raise SpecError(f"a sample of {given:,} {what} cannot be drawn: the data have {there:,}")
        order = tabulate(dataset).shuffled("sample", seed)
        if timesteps is not None:
            reached = np.cumsum(_lengths(dataset)[order])
            return self.select(order[: int(np.searchsorted(reached, timesteps)) + 1])
        if fraction is not None:
            _check_fraction("fraction", fraction)
            episodes = round(fraction * dataset.num_episodes)
        return self.select(order[:episodes])

    @property
    def _dataset(self) -> Dataset:
        return cast(Dataset, self)


class Selection(Selectable):
    """A `Dataset` (see there) of some episodes of another. A unit is read whole, and what was not chosen left out.

    Args:
        base: the other.
        indices: `[N]` increasing.
    """

    def __init__(self, base: Dataset, indices: I64) -> None:
        self.spec = base.spec
        self.notes = base.notes
        self.nbytes_stored = base.nbytes_stored
        self.layouts = base.layouts
        self.digest = digest_of([base.digest, digest_of([indices.astype("<i8").tobytes().hex()])])
        self._base = base
        self._places: list[tuple[Unit, I64]] = []
        units: list[Unit] = []
        starts = np.cumsum([0, *(len(unit.lengths) for unit in base.units)])
        cuts = np.searchsorted(indices, starts)
        for unit, start, first, stop in zip(base.units, starts[:-1], cuts[:-1], cuts[1:], strict=True):
            if first == stop:
                continue
            rows = indices[first:stop] - start
            lengths = unit.lengths[rows]
            nbytes = unit.nbytes * int(lengths.sum()) // max(1, int(unit.lengths.sum()))
            units.append(Unit(len(units), unit.parts, lengths, nbytes))
            self._places.append((unit, rows))
        self.units: Sequence[Unit] = tuple(units)
        self.num_episodes = len(indices)
        self.num_steps = sum(int(unit.lengths.sum()) for unit in units)
        self.nbytes = sum(unit.nbytes for unit in units)

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """See `Dataset.read`."""
        whole, rows = self._places[unit.id]
        block = self._base.read(whole, columns)
        return block if len(rows) == block.num_episodes else block.take(rows)

    def locate(self, unit: Unit, episode: int) -> tuple[str, int]:
        """See `Dataset.locate`."""
        whole, rows = self._places[unit.id]
        return self._base.locate(whole, int(rows[episode]))

    def unreadable(self, unit: Unit, columns: Iterable[str] | None = None) -> Iterator[tuple[str, DataError]]:
        """See `Dataset.unreadable`."""
        return self._base.unreadable(self._places[unit.id][0], columns)


def _indices(episodes: Episodes, total: int) -> I64:
    chosen = np.asarray(episodes)
    if chosen.dtype == np.bool_:
        if chosen.shape != (total,):
            raise DataError(f"{len(chosen):,} booleans were given to select from {total:,} episodes")
        return np.flatnonzero(chosen)
    indices = np.unique(chosen.astype(np.int64))
    if len(indices) != chosen.size:
        raise DataError("an episode was selected twice: give each index once")
    if len(indices) and (indices[0] < 0 or indices[-1] >= total):
        wrong = indices[0] if indices[0] < 0 else indices[-1]
        raise DataError(f"episode {wrong} was selected: the data have {total:,}, counted from 0")
    return indices


def _lengths(dataset: Dataset) -> I64:
    return np.concatenate([unit.lengths for unit in dataset.units])


def _episode_term(term: FilterTerm | str) -> FilterTerm:
    parsed = parse_filter(term) if isinstance(term, str) else term
    if parsed.column not in FIELDS:
        raise SpecError(f"{parsed.column!r} is no field of an episode: allowed are {', '.join(FIELDS)}")
    return parsed


def _check_fraction(name: str, fraction: float) -> None:
    if not 0 < fraction < 1:
        raise SpecError(f"{name} is {fraction:g}: expected a number between 0 and 1")
