"""Merge several datasets into one view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np

from hindcast import formatting
from hindcast.datasets.casting import cast_columns
from hindcast.datasets.content import compute_episode_checksums, find_repeats
from hindcast.datasets.dataset import Dataset, UnitOrigin, View
from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
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
        DataError: there are no datasets; columns, dtypes, shapes or spaces differ; or episodes with the same id differ,
            and `on_conflict` is `Refuse`.
    """
    if not datasets:
        raise DataError("a merge requires data: name at least one folder or file with episodes")
    spec = DataSpec.merge_all((_first_path(dataset), dataset.spec) for dataset in datasets)
    ids = [eps_id for dataset in datasets for eps_id in dataset.episode_table().eps_id.tolist()]
    view = _join(spec, datasets, {})
    repeats = find_repeats(dict(enumerate(ids)), partial(compute_episode_checksums, view))
    if repeats.conflicts and on_conflict == "Refuse":
        later, earlier = next(iter(repeats.conflicts.items()))
        raise _conflict_error(view, ids[earlier], earlier, later)
    used_ids = set(ids)
    new_ids = {episode: _reserve_id(ids[episode], used_ids) for episode in repeats.conflicts}
    if not repeats.duplicates and not new_ids:
        return view
    is_kept = np.ones(len(ids), dtype=np.bool_)
    is_kept[repeats.duplicates] = False
    stops = np.cumsum([dataset.num_episodes for dataset in datasets])
    remaining_datasets = [
        dataset if mask.all() else dataset.select(mask)
        for dataset, mask in zip(datasets, np.split(is_kept, stops[:-1]), strict=True)
    ]
    new_index = np.cumsum(is_kept) - 1
    ids_by_index = {int(new_index[episode]): new_id for episode, new_id in new_ids.items()}
    return _join(
        spec, remaining_datasets, ids_by_index, tuple(_make_notes(len(repeats.duplicates), len(new_ids)))
    )


class _MergedView(View):
    """A view of datasets whose numbers may have other dtypes than the view's."""

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """See `Dataset.read`."""
        return cast_columns(super().read(unit, columns), self.spec)


def _join(
    spec: DataSpec, datasets: Sequence[Dataset], new_ids: Mapping[int, str], notes: tuple[str, ...] = ()
) -> View:
    """Make a view of all episodes, in order; `new_ids` maps the index of a renamed episode to its new id."""
    origins: list[UnitOrigin] = []
    id_changes: list[str] = []
    first_episode = 0
    for dataset in datasets:
        dataset_start = first_episode
        for unit in dataset.units:
            episodes = np.arange(len(unit.lengths))
            unit_ids = {
                episode: new_ids[first_episode + episode]
                for episode in episodes.tolist()
                if first_episode + episode in new_ids
            }
            origins.append(UnitOrigin(dataset, unit, episodes, unit_ids))
            first_episode += len(episodes)
        id_changes.append(
            repr(
                [(i - dataset_start, new_ids[i]) for i in range(dataset_start, first_episode) if i in new_ids]
            )
        )
    return _MergedView(
        spec, datasets, origins, digest_of([*(dataset.digest for dataset in datasets), *id_changes]), notes
    )


def _conflict_error(view: Dataset, eps_id: str, earlier: int, later: int) -> DataError:
    locations = [_describe_location(view, episode) for episode in (earlier, later)]
    return DataError(
        f"episode {eps_id} is in {locations[0]}, and, with different content, in {locations[1]}: rename the second "
        '(on_conflict="Rename", --on-conflict Rename), or leave one of them out'
    )


def _describe_location(dataset: Dataset, episode: int) -> str:
    view = dataset.select([episode])
    return str(view.locate(view.units[0], 0))


def _first_path(dataset: Dataset) -> str:
    """Return the path that names a dataset in messages: of its first file, or of the data that it was prepared from."""
    return dataset.locate(dataset.units[0], 0).path if len(dataset.units) else "a dataset without episodes"


def _reserve_id(eps_id: str, used_ids: set[str]) -> str:
    """Return the first unused id of the form `<id>-2`, `<id>-3`, …, and add it to the used ids."""
    suffix = 2
    while f"{eps_id}-{suffix}" in used_ids:
        suffix += 1
    used_ids.add(f"{eps_id}-{suffix}")
    return f"{eps_id}-{suffix}"


def _make_notes(num_dropped: int, num_renamed: int) -> Iterable[str]:
    if num_dropped:
        episodes = formatting.plural(num_dropped, "episode")
        yield f"{episodes} repeated others (the same id and the same content): each counts once"
    if num_renamed:
        episodes = formatting.plural(num_renamed, "episode")
        yield f"{episodes} had the id of another episode and different content, and were renamed"
