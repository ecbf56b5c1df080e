"""Minari's episodes in HDF5: a group `episode_<n>` each."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.foreign.hdf5 import h5
from hindcast.foreign.hdf5.dataset import Dataset
from hindcast.foreign.hdf5.minari_episodes import StoredEpisode, check_leaves
from hindcast.foreign.hdf5.minari_metadata import MinariMetadata
from hindcast.foreign.hdf5.minari_values import decode_images, infos_to_json, part_name
from hindcast.store.filesystem import Location

PREFIX: Final = "episode_"
_FLAGS: Final = ("terminations", "truncations")


class Stored(NamedTuple):
    """An episode that is there: its number, its steps."""

    number: int
    steps: int


def is_episode(name: str) -> bool:
    """Whether a group is an episode's, by its name: `episode_7`."""
    return name.startswith(PREFIX) and name.removeprefix(PREFIX).isdigit()


def episodes_in(location: Location, file: h5.Group) -> list[Stored]:
    """The file's episodes in order.

    Raises:
        DataError: a group that is no episode's, or an episode without rewards.
    """
    numbers = []
    for name in h5.names(location, file):
        if not is_episode(name):
            raise DataError(f"{location} holds {name!r}: a file of Minari holds episode_0, episode_1, … only")
        numbers.append(int(name.removeprefix(PREFIX)))
    return [Stored(number, _steps(location, file, number)) for number in sorted(numbers)]


def bytes_per_step(location: Location, file: h5.Group, episode: Stored) -> int:
    """About how many bytes a step takes in memory, by one episode."""
    group = h5.child(location, file, f"{PREFIX}{episode.number}")
    size = sum(dataset.dtype.itemsize * dataset.size for dataset in h5.datasets(location, group).values())
    return max(1, size // max(1, episode.steps))


def read_episode(
    location: Location, file: h5.Group, number: int, metadata: MinariMetadata, with_infos: bool
) -> StoredEpisode:
    """One episode.

    Raises:
        DataError: what is missing, damaged, or built otherwise than the dataset's spaces.
    """
    group = h5.child(location, file, f"{PREFIX}{number}")
    where, spaces = f"{location} at {group.name}", metadata.leaf_spaces()
    parts = {
        **_leaves(location, group, "observations", Columns.OBS),
        **_leaves(location, group, "actions", Columns.ACTIONS),
    }
    check_leaves(list(parts), spaces, where)
    columns = {name: _values(location, dataset, spaces.get(name)) for name, dataset in parts.items()}
    columns[Columns.REWARDS] = _rewards(location, group)
    if with_infos and h5.has(group, "infos"):
        tree = _tree(location, h5.child(location, group, "infos"))
        if tree:
            columns[Columns.INFOS] = infos_to_json(tree, len(columns[Columns.REWARDS]) + 1, where)
    flags = [h5.values(location, _leaf(location, group, name)) for name in _FLAGS]
    return StoredEpisode(f"{metadata.name}/{number}", where, columns, *flags)


def _steps(location: Location, file: h5.Group, number: int) -> int:
    group = h5.child(location, file, f"{PREFIX}{number}")
    if not h5.is_group(group):
        raise DataError(f"{location} has a dataset at {group.name}, where an episode's group is expected")
    return h5.rows(location, _leaf(location, group, "rewards"))


def _leaf(location: Location, group: h5.Group, name: str) -> Dataset:
    node = h5.child(location, group, name)
    if h5.is_group(node):
        raise DataError(f"{location} has a group at {node.name}, where an array is expected")
    h5.rows(location, node)
    return node


def _leaves(location: Location, group: h5.Group, name: str, column: str) -> dict[str, Dataset]:
    found = h5.datasets(location, h5.child(location, group, name))
    named = {}
    for path, dataset in found.items():
        h5.rows(location, dataset)
        parts = [part_name(part) for part in path.split("/")] if path else []
        named["/".join([column, *parts])] = dataset
    return named


def _values(location: Location, dataset: Dataset, space: gym.Space | None) -> NDArray[Any]:
    shape = getattr(space, "shape", None)
    is_jpeg = dataset.is_bytes or (shape is not None and len(shape) >= 2 and len(dataset.shape) == 2)
    if not is_jpeg:
        return h5.values(location, dataset)
    if shape is None:
        raise DataError(
            f"{location} holds compressed images at {dataset.name}, and nothing says of what shape: "
            "its metadata lack the space"
        )
    return decode_images(h5.values(location, dataset), shape, f"{location} at {dataset.name}")


def _rewards(location: Location, group: h5.Group) -> NDArray[Any]:
    """Rewards that happen to be whole in all of an episode were stored as integers."""
    rewards = h5.values(location, _leaf(location, group, "rewards"))
    return rewards.astype(np.float64) if rewards.dtype.kind in "biu" else rewards


def _tree(location: Location, infos: h5.Group) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, dataset in h5.datasets(location, infos).items():
        h5.rows(location, dataset)
        *above, name = path.split("/")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[name] = h5.values(location, dataset)
    return tree
