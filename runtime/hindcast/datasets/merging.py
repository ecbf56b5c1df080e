"""Merge several datasets into one view."""

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
    """Merge datasets, in order, without copying.

    Episodes with the same id and the same content count once, and `notes` say so.

    Args:
        datasets: at least one, with the same columns and spaces.
        on_conflict: for episodes with the same id and different content: `Refuse`, or `Rename` the later one to
            `<id>-2`, `<id>-3`, ….

    Raises:
        DataError: columns, dtypes, shapes or spaces differ, or episodes with the same id differ.
    """
    if not datasets:
        raise DataError("a merge requires data: name at least one folder or file with episodes")
    spec = DataSpec.merge_all((_first_file(dataset), dataset.spec) for dataset in datasets)
    ids = [eps_id for dataset in datasets for eps_id in dataset.episode_table().eps_id.tolist()]
    view = _join(spec, datasets, {})
    repeats = find_repeats(dict(enumerate(ids)), partial(contents_of, view))
    if repeats.conflicts and on_conflict == "Refuse":
        second, first = next(iter(repeats.conflicts.items()))
        raise _conflict_error(view, ids[first], first, second)
    used_ids = set(ids)
    new_ids = {episode: _free_id(ids[episode], used_ids) for episode in repeats.conflicts}
    if not repeats.duplicates and not new_ids:
        return view
    keep = np.ones(len(ids), dtype=np.bool_)
    keep[repeats.duplicates] = False
    stops = np.cumsum([dataset.num_episodes for dataset in datasets])
    parts = [
        dataset if mask.all() else dataset.select(mask)
        for dataset, mask in zip(datasets, np.split(keep, stops[:-1]), strict=True)
    ]
    new_index = np.cumsum(keep) - 1
    ids_by_index = {int(new_index[episode]): name for episode, name in new_ids.items()}
    return _join(spec, parts, ids_by_index, tuple(_notes(len(repeats.duplicates), len(new_ids))))


def _join(
    spec: DataSpec, parts: Sequence[Dataset], new_ids: Mapping[int, str], notes: tuple[str, ...] = ()
) -> View:
    """Make a view of all episodes, in order; `new_ids` maps an episode to its new id."""
    origins: list[UnitOrigin] = []
    id_changes: list[str] = []
    first = 0
    for part in parts:
        part_start = first
        for unit in part.units:
            rows = np.arange(len(unit.lengths))
            unit_ids = {row: new_ids[first + row] for row in rows.tolist() if first + row in new_ids}
            origins.append(UnitOrigin(part, unit, rows, unit_ids))
            first += len(rows)
        id_changes.append(
            repr([(i - part_start, new_ids[i]) for i in range(part_start, first) if i in new_ids])
        )
    return View(spec, parts, origins, digest_of([*(part.digest for part in parts), *id_changes]), notes)


def _conflict_error(view: Dataset, eps_id: str, first: int, second: int) -> DataError:
    locations = [_locate_in_text(view, episode) for episode in (first, second)]
    return DataError(
        f"episode {eps_id} is in {locations[0]} and, with different content, in {locations[1]}: rename the second "
        '(on_conflict="Rename", --on-conflict Rename), or leave one of them out'
    )


def _locate_in_text(dataset: Dataset, episode: int) -> str:
    view = dataset.select([episode])
    return f"{view.locate(view.units[0], 0)},"


def _first_file(dataset: Dataset) -> str:
    return dataset.units[0].parts[0].path if dataset.units else "a dataset without episodes"


def _free_id(eps_id: str, used_ids: set[str]) -> str:
    number = 2
    while f"{eps_id}-{number}" in used_ids:
        number += 1
    used_ids.add(f"{eps_id}-{number}")
    return f"{eps_id}-{number}"


def _notes(num_dropped: int, num_renamed: int) -> Iterable[str]:
    if num_dropped:
        episodes = formatting.plural(num_dropped, "episode")
        yield f"{episodes} repeated others (the same id and the same content): each counts once"
    if num_renamed:
        episodes = formatting.plural(num_renamed, "episode")
        yield f"{episodes} had the id of another episode and different content, and were renamed"
