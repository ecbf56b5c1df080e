"""What a Minari dataset is made of, found without reading its steps."""

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
_SMALLEST_IMAGE: Final = 32  # pixels a side, as Minari has it


class EpisodeEntry(NamedTuple):
    """Its number, its bytes, and, if it has separate files, their paths relative to the dataset's folder."""

    number: int
    nbytes: int
    files: tuple[str, ...] = ()


class EpisodeGroup(NamedTuple):
    """Episodes of a dataset that are read together.

    Attributes:
        metadata: of the dataset, with spaces of the same structure where it does not say its own.
    """

    metadata: MinariMetadata
    episodes: Sequence[EpisodeEntry]

    @property
    def nbytes(self) -> int:
        """Size in memory, about."""
        return sum(episode.nbytes for episode in self.episodes)

    def split(self) -> Iterator[EpisodeGroup]:
        """Adjacent episodes of about 16 MiB."""
        start = nbytes = 0
        for stop, episode in enumerate(self.episodes, start=1):
            nbytes += episode.nbytes
            if nbytes >= PIECE_BYTES or stop == len(self.episodes):
                yield EpisodeGroup(self.metadata, self.episodes[start:stop])
                start, nbytes = stop, 0


def is_episode(name: str) -> bool:
    """Whether a group of an HDF5 file is an episode's, by its name: `episode_7`."""
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdigit()


def index_episodes(location: Location, metadata: MinariMetadata) -> EpisodeGroup:
    """All episodes of a dataset: of a main file, or of the folder of a `metadata.json`.

    Raises:
        DataError: another number of episodes or steps than the metadata say; what Minari does not write, such as links.
    """
    found = _in_folder(location, metadata) if location.name == METADATA_FILE else _in_hdf5(location, metadata)
    if metadata.total_episodes not in (None, len(found.episodes)):
        raise DataError(
            f"{location} holds {formatting.plural(len(found.episodes), 'episode')}, but its metadata say "
            f"{metadata.total_episodes}: copy the dataset again"
        )
    return found


def _in_folder(location: Location, metadata: MinariMetadata) -> EpisodeGroup:
    files: dict[int, list[tuple[str, int]]] = {}
    for entry in location.parent().list(recursive=True):
        number, _, name = entry.relative_path.partition("/")
        if not number.isdigit():
            continue
        known = files.setdefault(int(number), [])
        if entry.is_file and name.endswith(f".{metadata.data_format}"):
            known.append((entry.relative_path, entry.size))
    for missing in (number for number, found in files.items() if not found):
        folder = location.parent().child(str(missing))
        raise DataError(f"{folder} holds no .{metadata.data_format} file: copy the dataset again")
    if metadata.observation_space is None or metadata.action_space is None:
        raise DataError(f"{location} does not name the dataset's spaces: copy it again")
    return EpisodeGroup(
        metadata,
        [
            EpisodeEntry(number, sum(size for _, size in found), tuple(name for name, _ in found))
            for number, found in sorted(files.items())
        ],
    )


def _in_hdf5(location: Location, metadata: MinariMetadata) -> EpisodeGroup:
    """Looks at every node, since Minari would follow links, which may lead out of the file."""
    found: dict[int, dict[str, Dataset]] = {}
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
            found[int(name.removeprefix(_PREFIX))] = parts
        steps = sum(hdf5.num_rows(location, parts["rewards"]) for parts in found.values())
        episodes = [
            EpisodeEntry(number, sum(part.dtype.itemsize * part.size for part in parts.values()))
            for number, parts in sorted(found.items())
        ]
        metadata = _completed(metadata, next(iter(found.values()), {}))
    if metadata.total_steps not in (None, steps):
        raise DataError(
            f"{location} holds {plural(steps, 'timestep')}, but its metadata say {metadata.total_steps}: copy the "
            "dataset again"
        )
    return EpisodeGroup(metadata, episodes)


def _completed(metadata: MinariMetadata, parts: Mapping[str, Dataset]) -> MinariMetadata:
    """The metadata with what old files leave out, by the arrays of an episode."""
    is_raw = any(
        part.dtype == np.uint8 and len(part.shape) > 2 and part.shape[1] >= _SMALLEST_IMAGE
        for part in parts.values()
    )
    return metadata.model_copy(
        update={
            "observation_space": metadata.observation_space or _space_of(parts, "observations"),
            "action_space": metadata.action_space or _space_of(parts, "actions"),
            "jpeg_encoding": not is_raw if metadata.jpeg_encoding is None else metadata.jpeg_encoding,
        }
    )


def _space_of(parts: Mapping[str, Dataset], path: str) -> spaces.Space:
    """A space of the structure that is stored: enough to find the parts by it."""
    if path in parts:
        found = parts[path]
        return spaces.Text(1) if hdf5.is_text(found) else spaces.Box(-np.inf, np.inf, found.shape[1:])
    names = {name.removeprefix(f"{path}/").split("/")[0] for name in parts if name.startswith(f"{path}/")}
    below = {name: _space_of(parts, f"{path}/{name}") for name in names}
    if below.keys() == {f"_index_{i}" for i in range(len(below))}:
        return spaces.Tuple([below[f"_index_{i}"] for i in range(len(below))])
    return spaces.Dict(below)
