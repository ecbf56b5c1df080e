"""Index of a Minari dataset: its episodes, their sizes and files, found without reading steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from gymnasium import spaces

from hindcast import formatting
from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.format import PIECE_BYTES
from hindcast.formats.hdf5 import Dataset
from hindcast.formats.minari.metadata import METADATA_FILE, MinariMetadata
from hindcast.formatting import plural
from hindcast.storage.location import Location

_PREFIX: Final = "episode_"
_SMALLEST_IMAGE: Final = 32  # pixels per side, as in Minari


class EpisodeEntry(NamedTuple):
    """Number and size of an episode, and the paths of its files, if separate, relative to the dataset's folder."""

    number: int
    nbytes: int
    files: tuple[str, ...] = ()


class EpisodeGroup(NamedTuple):
    """Episodes of a dataset that are read together.

    Attributes:
        metadata: metadata of the dataset; a missing space is replaced by one of the same structure.
    """

    metadata: MinariMetadata
    episodes: Sequence[EpisodeEntry]

    @property
    def nbytes(self) -> int:
        """Size in memory, about."""
        return sum(episode.nbytes for episode in self.episodes)

    def split(self) -> Iterator[EpisodeGroup]:
        """Split into groups of adjacent episodes of about 16 MiB."""
        start = nbytes = 0
        for stop, episode in enumerate(self.episodes, start=1):
            nbytes += episode.nbytes
            if nbytes >= PIECE_BYTES or stop == len(self.episodes):
                yield EpisodeGroup(self.metadata, self.episodes[start:stop])
                start, nbytes = stop, 0


def is_episode(name: str) -> bool:
    """Return whether a group of an HDF5 file is an episode, by its name: `episode_7`."""
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdigit()


def index_episodes(location: Location, metadata: MinariMetadata) -> EpisodeGroup:
    """Index all episodes of a dataset: of a main file, or of the folder of a `metadata.json`.

    Raises:
        DataError: the number of episodes or steps differs from the metadata; the file has parts that Minari does not
            write, such as links.
    """
    group = (
        _index_folder(location, metadata)
        if location.name == METADATA_FILE
        else _index_hdf5(location, metadata)
    )
    if metadata.total_episodes not in (None, len(group.episodes)):
        raise DataError(
            f"{location} holds {formatting.plural(len(group.episodes), 'episode')}, but its metadata say "
            f"{metadata.total_episodes}: copy the dataset again"
        )
    return group


def _index_folder(location: Location, metadata: MinariMetadata) -> EpisodeGroup:
    files: dict[int, list[tuple[str, int]]] = {}
    for entry in location.parent().list(recursive=True):
        number, _, name = entry.relative_path.partition("/")
        if not number.isdigit():
            continue
        episode_files = files.setdefault(int(number), [])
        if entry.is_file and name.endswith(f".{metadata.data_format}"):
            episode_files.append((entry.relative_path, entry.size))
    for missing in (number for number, entries in files.items() if not entries):
        folder = location.parent().child(str(missing))
        raise DataError(f"{folder} holds no .{metadata.data_format} file: copy the dataset again")
    if metadata.observation_space is None or metadata.action_space is None:
        raise DataError(f"{location} does not name the dataset's spaces: copy it again")
    return EpisodeGroup(
        metadata,
        [
            EpisodeEntry(number, sum(size for _, size in entries), tuple(name for name, _ in entries))
            for number, entries in sorted(files.items())
        ],
    )


def _index_hdf5(location: Location, metadata: MinariMetadata) -> EpisodeGroup:
    """Index a main file. Checks every node, because Minari would follow links, which may lead out of the file."""
    datasets_by_episode: dict[int, dict[str, Dataset]] = {}
    with hdf5.open_file(location) as file:
        for name in hdf5.child_names(location, file):
            if not is_episode(name):
                raise DataError(
                    f"{location} holds {name!r}: a file of Minari holds episode_0, episode_1, … only"
                )
            group = hdf5.open_child(location, file, name)
            parts = hdf5.collect_datasets(location, group)
            if "rewards" not in parts:
                raise DataError(f"{location} has no array at {group.name}/rewards: copy it again")
            datasets_by_episode[int(name.removeprefix(_PREFIX))] = parts
        steps = sum(hdf5.num_rows(location, parts["rewards"]) for parts in datasets_by_episode.values())
        episodes = [
            EpisodeEntry(number, sum(part.dtype.itemsize * part.size for part in parts.values()))
            for number, parts in sorted(datasets_by_episode.items())
        ]
        metadata = _complete_metadata(metadata, next(iter(datasets_by_episode.values()), {}))
    if metadata.total_steps not in (None, steps):
        raise DataError(
            f"{location} holds {plural(steps, 'timestep')}, but its metadata say {metadata.total_steps}: copy the "
            "dataset again"
        )
    return EpisodeGroup(metadata, episodes)


def _complete_metadata(metadata: MinariMetadata, datasets: Mapping[str, Dataset]) -> MinariMetadata:
    """Complete the metadata of old files by the arrays of an episode."""
    is_raw = any(
        dataset.dtype == np.uint8 and len(dataset.shape) > 2 and dataset.shape[1] >= _SMALLEST_IMAGE
        for dataset in datasets.values()
    )
    return metadata.model_copy(
        update={
            "observation_space": metadata.observation_space or _infer_space(datasets, "observations"),
            "action_space": metadata.action_space or _infer_space(datasets, "actions"),
            "jpeg_encoding": not is_raw if metadata.jpeg_encoding is None else metadata.jpeg_encoding,
        }
    )


def _infer_space(datasets: Mapping[str, Dataset], path: str) -> spaces.Space:
    """Return a space with the stored structure, which Minari needs to find the parts."""
    if path in datasets:
        dataset = datasets[path]
        return spaces.Text(1) if hdf5.is_text(dataset) else spaces.Box(-np.inf, np.inf, dataset.shape[1:])
    names = {name.removeprefix(f"{path}/").split("/")[0] for name in datasets if name.startswith(f"{path}/")}
    children = {name: _infer_space(datasets, f"{path}/{name}") for name in names}
    if children.keys() == {f"_index_{i}" for i in range(len(children))}:
        return spaces.Tuple([children[f"_index_{i}"] for i in range(len(children))])
    return spaces.Dict(children)
