"""The index of a Minari dataset: its episodes with their sizes and files, found without reading steps."""

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

_EPISODE_PREFIX: Final = "episode_"
_MIN_IMAGE_PIXELS: Final = 32  # per side, as in Minari


class EpisodeEntry(NamedTuple):
    """An episode of a dataset.

    Attributes:
        number: number of the episode in Minari.
        nbytes: approximate size in memory.
        files: paths relative to the dataset's folder, if the episode has its own files.
    """

    number: int
    nbytes: int
    files: tuple[str, ...] = ()


class EpisodeGroup(NamedTuple):
    """Episodes of a dataset that are read together.

    Attributes:
        metadata: metadata of the dataset. A missing space is replaced by a space with the structure of the data.
        episodes: the episodes.
    """

    metadata: MinariMetadata
    episodes: Sequence[EpisodeEntry]

    @property
    def nbytes(self) -> int:
        """Approximate size in memory."""
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
    return name.startswith(_EPISODE_PREFIX) and name.removeprefix(_EPISODE_PREFIX).isdigit()


def index_episodes(location: Location, metadata: MinariMetadata) -> EpisodeGroup:
    """Index all episodes of a dataset.

    Args:
        location: main file of the dataset, or its `metadata.json` if it is in Arrow or Parquet.
        metadata: metadata of the dataset.

    Raises:
        DataError: the file is damaged, the number of episodes or steps differs from the metadata, or the file contains
            something that Minari does not write, such as links.
    """
    group = (
        _index_folder(location, metadata)
        if location.name == METADATA_FILE
        else _index_hdf5(location, metadata)
    )
    if metadata.total_episodes not in (None, len(group.episodes)):
        raise DataError(
            f"holds {formatting.plural(len(group.episodes), 'episode')}, but its metadata say "
            f"{metadata.total_episodes}: copy the dataset again",
            path=str(location),
        )
    return group


def _index_folder(location: Location, metadata: MinariMetadata) -> EpisodeGroup:
    files_by_episode: dict[int, list[tuple[str, int]]] = {}
    for entry in location.parent().list(recursive=True):
        number, _, name = entry.relative_path.partition("/")
        if not number.isdigit():
            continue
        episode_files = files_by_episode.setdefault(int(number), [])
        if entry.is_file and name.endswith(f".{metadata.data_format}"):
            episode_files.append((entry.relative_path, entry.size))
    for episode, entries in files_by_episode.items():
        if not entries:
            folder = location.parent().child(str(episode))
            raise DataError(f"{folder} holds no .{metadata.data_format} file: copy the dataset again")
    if metadata.observation_space is None or metadata.action_space is None:
        raise DataError("does not name the dataset's spaces: copy it again", path=str(location))
    return EpisodeGroup(
        metadata,
        [
            EpisodeEntry(number, sum(size for _, size in entries), tuple(name for name, _ in entries))
            for number, entries in sorted(files_by_episode.items())
        ],
    )


def _index_hdf5(location: Location, metadata: MinariMetadata) -> EpisodeGroup:
    """Index a main file. All nodes are checked, because Minari would follow links to other files."""
    datasets_by_episode: dict[int, dict[str, Dataset]] = {}
    with hdf5.open_file(location) as file:
        for name in hdf5.list_child_names(location, file):
            if not is_episode(name):
                raise DataError(
                    f"holds {name!r}: a file of Minari holds episode_0, episode_1, … only", path=str(location)
                )
            group = hdf5.open_child(location, file, name)
            datasets = hdf5.collect_datasets(location, group)
            if "rewards" not in datasets:
                raise DataError(f"has no array at {group.name}/rewards: copy it again", path=str(location))
            datasets_by_episode[int(name.removeprefix(_EPISODE_PREFIX))] = datasets
        num_steps = sum(
            hdf5.count_rows(location, datasets["rewards"]) for datasets in datasets_by_episode.values()
        )
        episodes = [
            EpisodeEntry(number, sum(dataset.dtype.itemsize * dataset.size for dataset in datasets.values()))
            for number, datasets in sorted(datasets_by_episode.items())
        ]
        metadata = _complete_metadata(metadata, next(iter(datasets_by_episode.values()), {}))
    if metadata.total_steps not in (None, num_steps):
        raise DataError(
            f"holds {plural(num_steps, 'timestep')}, but its metadata say {metadata.total_steps}: copy the "
            "dataset again",
            path=str(location),
        )
    return EpisodeGroup(metadata, episodes)


def _complete_metadata(metadata: MinariMetadata, datasets: Mapping[str, Dataset]) -> MinariMetadata:
    """Infer metadata that old files lack from the arrays of an episode; without raw images, `jpeg_encoding` is True."""
    has_raw_images = any(
        dataset.dtype == np.uint8 and len(dataset.shape) > 2 and dataset.shape[1] >= _MIN_IMAGE_PIXELS
        for dataset in datasets.values()
    )
    return metadata.model_copy(
        update={
            "observation_space": metadata.observation_space or _infer_space(datasets, "observations"),
            "action_space": metadata.action_space or _infer_space(datasets, "actions"),
            "jpeg_encoding": not has_raw_images if metadata.jpeg_encoding is None else metadata.jpeg_encoding,
        }
    )


def _infer_space(datasets: Mapping[str, Dataset], path: str) -> spaces.Space:
    """Return a space with the structure of the stored arrays; Minari finds the arrays by the space."""
    if path in datasets:
        dataset = datasets[path]
        return spaces.Text(1) if hdf5.is_text(dataset) else spaces.Box(-np.inf, np.inf, dataset.shape[1:])
    names = {name.removeprefix(f"{path}/").split("/")[0] for name in datasets if name.startswith(f"{path}/")}
    children = {name: _infer_space(datasets, f"{path}/{name}") for name in names}
    if children.keys() == {f"_index_{i}" for i in range(len(children))}:
        return spaces.Tuple([children[f"_index_{i}"] for i in range(len(children))])
    return spaces.Dict(children)
