"""Several datasets as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np

from hindcast import formatting
from hindcast.datasets.content import contents_of, find_repeats
from hindcast.datasets.dataset import Dataset, UnitOrigin, View
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.manifest import digest_of
from hindcast.formats.spec import DataSpec

OnConflict = Literal["Refuse", "Rename"]


def merge(datasets: Sequence[Dataset], on_conflict: OnConflict = "Refuse") -> View:
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
    spec = DataSpec.merge_all((_first_file(each), each.spec) for each in datasets)
    ids = [eps_id for each in datasets for eps_id in each.episode_table().eps_id.tolist()]
    joined = _joined(spec, datasets, {})
    repeats = find_repeats(dict(enumerate(ids)), partial(contents_of, joined))
    if repeats.conflicts and on_conflict == "Refuse":
        second, first = next(iter(repeats.conflicts.items()))
        raise _conflict(joined, ids[first], first, second)
    taken = set(ids)
    renamed = {episode: _free_name(ids[episode], taken) for episode in repeats.conflicts}
    if not repeats.duplicates and not renamed:
        return joined
    keep = np.ones(len(ids), dtype=np.bool_)
    keep[repeats.duplicates] = False
    stops = np.cumsum([each.num_episodes for each in datasets])
    parts = [
        each if kept.all() else each.select(kept)
        for each, kept in zip(datasets, np.split(keep, stops[:-1]), strict=True)
    ]
    position = np.cumsum(keep) - 1
    names = {int(position[episode]): name for episode, name in renamed.items()}
    return _joined(spec, parts, names, tuple(_notes(len(repeats.duplicates), len(renamed))))


def _joined(
    spec: DataSpec, parts: Sequence[Dataset], renamed: Mapping[int, str], notes: tuple[str, ...] = ()
) -> View:
    """All episodes, in order; `renamed`: episode -> the id that it gets."""
    origins: list[UnitOrigin] = []
    names: list[str] = []
    first = 0
    for part in parts:
        begin = first
        for unit in part.units:
            rows = np.arange(len(unit.lengths))
            own = {row: renamed[first + row] for row in rows.tolist() if first + row in renamed}
            origins.append(UnitOrigin(part, unit, rows, own))
            first += len(rows)
        names.append(repr([(i - begin, renamed[i]) for i in range(begin, first) if i in renamed]))
    return View(spec, parts, origins, digest_of([*(part.digest for part in parts), *names]), notes)


def _conflict(joined: Dataset, eps_id: str, one: int, other: int) -> DataError:
    places = [_path(joined, episode) for episode in (one, other)]
    return DataError(
        f"episode {eps_id} is in {places[0]} and, with other content, in {places[1]}: rename the second "
        '(on_conflict="Rename", --on-conflict Rename), or leave one of them out'
    )


def _path(dataset: Dataset, episode: int) -> str:
    one = dataset.select([episode])
    return f"{one.locate(one.units[0], 0)},"


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
