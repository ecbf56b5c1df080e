"""Several datasets as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from hindcast import formatting
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.repeats import contents_of, find_repeats
from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.manifest import digest_of
from hindcast.formats.spec import DataSpec

OnConflict = Literal["Refuse", "Rename"]
NewNames = Mapping[int, str]  # episode of a dataset -> the id that it gets


def merge(datasets: Sequence[Dataset], on_conflict: OnConflict = "Refuse") -> Merged:
    """Several datasets as one, in order; nothing is copied.

    An episode that is in several with the same id and the same content counts once, and `notes` say so.

    Args:
        datasets: at least one; they hold the same columns and spaces.
        on_conflict: when episodes of one id differ: `Refuse`, or `Rename` the later one to `<id>-2`, `<id>-3`, ….

    Raises:
        DataError: columns, dtypes, shapes or spaces that differ; episodes of one id that differ.
    """
    if not datasets:
        raise DataError("no data are given to merge: name at least one folder or file with episodes")
    joined = Merged(
        DataSpec.common((_first_file(each), each.spec) for each in datasets), datasets, [{} for _ in datasets]
    )
    ids = joined.episode_table().eps_id.tolist()
    repeats = find_repeats(dict(enumerate(ids)), partial(contents_of, joined))
    if repeats.others and on_conflict == "Refuse":
        second, first = next(iter(repeats.others.items()))
        raise _conflict(joined, ids[first], first, second)
    taken = set(ids)
    renamed = {episode: _free_name(ids[episode], taken) for episode in repeats.others}
    return _without(joined, repeats.same, renamed)


class Merged(Dataset):
    """Several datasets, one after the other.

    Args:
        spec: what all hold.
        parts: the others.
        renamed: for each, the episodes that have another id here.
        notes: see `Dataset`, in addition to those of the parts.
    """

    def __init__(
        self,
        spec: DataSpec,
        parts: Sequence[Dataset],
        renamed: Sequence[NewNames],
        notes: tuple[str, ...] = (),
    ) -> None:
        self.spec = spec
        self.digest = digest_of(
            [*(part.digest for part in parts), *(repr(sorted(names.items())) for names in renamed)]
        )
        self.nbytes_stored = sum(part.nbytes_stored for part in parts)
        self.layouts = tuple(dict.fromkeys(layout for part in parts for layout in part.layouts))
        self.notes = (*(note for part in parts for note in part.notes), *notes)
        self.parts = tuple(parts)
        self._places: list[tuple[int, Unit, NewNames]] = []
        units: list[Unit] = []
        for number, part in enumerate(parts):
            first = 0
            for unit in part.units:
                own = range(first, first + len(unit.lengths))
                names = {i - first: renamed[number][i] for i in own if i in renamed[number]}
                self._places.append((number, unit, names))
                units.append(unit._replace(id=len(units)))
                first = own.stop
        self.units = tuple(units)

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """See `Dataset.read`; JSON columns that its part lacks are empty."""
        number, own, names = self._places[unit.id]
        part, lacking = self.parts[number], self._lacking(number)
        wanted = None if columns is None else set(columns)
        block = part.read(own, None if wanted is None else wanted.difference(lacking))
        empty = {
            leaf: np.full(block.num_steps + block.num_episodes, "", dtype=object)
            for leaf in lacking
            if wanted is None or leaf in wanted
        }
        eps_id = block.eps_id.copy()
        for episode, name in names.items():
            eps_id[episode] = name
        return replace(block, columns={**block.columns, **empty}, eps_id=eps_id)

    def locate(self, unit: Unit, episode: int) -> tuple[str, int]:
        """See `Dataset.locate`."""
        number, own, _ = self._places[unit.id]
        return self.parts[number].locate(own, episode)

    def unreadable(self, unit: Unit, columns: Iterable[str] | None = None) -> Iterator[tuple[str, DataError]]:
        """See `Dataset.unreadable`."""
        number, own, _ = self._places[unit.id]
        wanted = None if columns is None else set(columns).difference(self._lacking(number))
        return self.parts[number].unreadable(own, wanted)

    def _lacking(self, number: int) -> list[str]:
        """The leaves (JSON, named like their columns) that a part lacks."""
        return [leaf for leaf in self.spec.leaves if leaf not in self.parts[number].spec.leaves]


def _without(joined: Merged, repeated: Sequence[int], renamed: NewNames) -> Merged:
    """The same without the repeated episodes, and with new names for others."""
    keep = np.ones(joined.num_episodes, dtype=np.bool_)
    keep[list(repeated)] = False
    parts, names, first = [], [], 0
    for part in joined.parts:
        kept = keep[first : first + part.num_episodes]
        position = np.cumsum(kept) - 1
        own = range(first, first + part.num_episodes)
        parts.append(part if kept.all() else part.select(kept))
        names.append({int(position[i - first]): renamed[i] for i in own if i in renamed})
        first = own.stop
    return Merged(joined.spec, parts, names, tuple(_notes(len(repeated), len(renamed))))


def _conflict(joined: Merged, eps_id: str, one: int, other: int) -> DataError:
    places = [_path(joined, episode) for episode in (one, other)]
    return DataError(
        f"episode {eps_id} is in {places[0]} and, with other content, in {places[1]}: rename the second "
        '(on_conflict="Rename", --on-conflict Rename), or leave one of them out'
    )


def _path(dataset: Dataset, episode: int) -> str:
    for unit in dataset.units:
        if episode < len(unit.lengths):
            path, row = dataset.locate(unit, episode)
            return f"{path}, row {row},"
        episode -= len(unit.lengths)
    raise IndexError(f"the dataset has {episode} episodes less")


def _first_file(dataset: Dataset) -> str:
    return dataset.units[0].parts[0].path if dataset.units else "a dataset without episodes"


def _free_name(eps_id: str, taken: set[str]) -> str:
    number = 2
    while f"{eps_id}-{number}" in taken:
        number += 1
    taken.add(f"{eps_id}-{number}")
    return f"{eps_id}-{number}"


def _notes(dropped: int, renamed: int) -> Iterable[str]:
    if dropped:
        repeated = formatting.plural(dropped, "episode")
        yield f"{repeated} repeated others (the same id and the same content): each counts once"
    if renamed:
        yield f"{formatting.plural(renamed, 'episode')} had the id of another with other content: renamed"
