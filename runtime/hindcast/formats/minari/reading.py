"""Episodes as Minari reads them, as one `Block`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import EMPTY_INFO, Columns, is_per_observation
from hindcast.episodes.convert import info_to_json
from hindcast.episodes.nested import flatten
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import DataError, UserError
from hindcast.formats.layout import RowError
from hindcast.formats.minari.episode_index import EpisodeGroup
from hindcast.formats.minari.metadata import METADATA_FILE, MinariMetadata
from hindcast.formats.spec import DataSpec
from hindcast.formatting import plural
from hindcast.storage.failures import reason_of
from hindcast.storage.location import Location

if TYPE_CHECKING:
    from minari.dataset.minari_storage import MinariStorage

_FLAGS: Final = ("terminations", "truncations")
_COPIED_AT_ONCE: Final = 8 << 20


@contextmanager
def local_folder(files: Mapping[str, Location]) -> Iterator[Path]:
    """A temporary folder of the files, by their names in it: links to those of this machine, copies of others.

    Raises:
        StorageError: one that cannot be read, or no room for the copies.
    """
    with TemporaryDirectory(prefix="hindcast-minari-") as folder:
        for name, location in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if location.is_local:
                path.symlink_to(location.path)
                continue
            with (
                location.open_stream() as source,
                path.open("wb") as copy,
            ):
                shutil.copyfileobj(source, copy, _COPIED_AT_ONCE)
        yield Path(folder)


def read_episodes(location: Location, folder: Path, stored: EpisodeGroup, with_infos: bool) -> Block:
    """Complete episodes.

    Args:
        folder: where its files are on this machine.

    Raises:
        DataError: what is missing, damaged, or built otherwise than the dataset's spaces.
    """
    with _faults(str(location), folder, location):
        storage = _opened(folder, stored.metadata)
    blocks: dict[str, Block] = {}
    for episode in stored.episodes:
        where = f"{location} at /episode_{episode.number}"
        if episode.files:
            where = str(location.parent().child(str(episode.number)))
        with _faults(where, folder, location):
            record = next(iter(storage.get_episodes([episode.number])), None)
            if record is None:
                raise DataError(f"{where} cannot be found: copy the dataset again")
            columns = _columns(record, stored.metadata.spec, where)
            if with_infos and record["infos"]:
                columns[Columns.INFOS] = _infos(record["infos"], len(columns[Columns.REWARDS]) + 1, where)
            if episode.files:
                steps = len(record["rewards"])
                _check_rows(folder / str(episode.number), stored.metadata.data_format, steps, where)
        blocks[where] = _block(f"{stored.metadata.dataset_id}/{episode.number}", columns, record, where)
    DataSpec.merge_all((where, DataSpec.from_block(block)) for where, block in blocks.items())
    return Block.concat(list(blocks.values()))


def _opened(folder: Path, metadata: MinariMetadata) -> MinariStorage:
    """The files by a document of ours, which names both spaces and no environment to be made."""
    from minari.dataset.minari_storage import MinariStorage
    from minari.serialization import serialize_space

    document = {
        "data_format": metadata.data_format,
        "observation_space": serialize_space(metadata.observation_space),
        "action_space": serialize_space(metadata.action_space),
        "jpeg_encoding": metadata.jpeg_encoding is not False,
    }
    (folder / METADATA_FILE).write_text(json.dumps(document, default=int))
    return MinariStorage.read(folder)


@contextmanager
def _faults(where: str, folder: Path, location: Location) -> Iterator[None]:
    """Turn what Minari and the libraries below it raise into a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = reason_of(error).replace(str(folder), str(location.parent()))
        raise DataError(
            f"{where} is damaged, was not written by Minari, or differs from the dataset's spaces: {reason}"
        ) from error


def _columns(record: Mapping[str, Any], spec: DataSpec, where: str) -> dict[str, NDArray[Any]]:
    """The leaves of observations and actions, and the rewards.

    Raises:
        DataError: another structure than the spaces', values that are missing, other shapes than those of images.
    """
    spaces = {
        **flatten_space(spec.observation_space, Columns.OBS),
        **flatten_space(spec.action_space, Columns.ACTIONS),
    }
    found = {**flatten(record["observations"], Columns.OBS), **flatten(record["actions"], Columns.ACTIONS)}
    if found.keys() != spaces.keys():
        raise DataError(f"{where} holds {sorted(found)}, but the dataset's spaces have {sorted(spaces)}")
    columns = {name: _array(values, f"{where} in {name}") for name, values in found.items()}
    for name, column in columns.items():
        shape = spaces[name].shape or ()
        if len(shape) > 1 and column.shape[1:] != shape:
            raise DataError(
                f"{where} in {name} holds arrays of {list(column.shape[1:])}, expected {list(shape)}"
            )
    rewards = _array(record["rewards"], f"{where} in rewards")
    # Rewards that happen to be whole numbers in all of an episode were stored as integers.
    columns[Columns.REWARDS] = rewards.astype(np.float64) if rewards.dtype.kind in "biu" else rewards
    return columns


def _array(values: Any, where: str) -> NDArray[Any]:
    """Numbers in native byte order, or an object array of `str`."""
    if isinstance(values, list):
        if not all(isinstance(value, str) for value in values):
            raise DataError(f"{where} holds values that are not text")
        return np.array(values, dtype=object)
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise DataError(f"{where} holds values that are missing or not numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_rows(folder: Path, format: str, steps: int, where: str) -> None:
    """Make sure that nothing was lost: Minari reads one batch of an episode, and numbers that are null as NaN."""
    stored = pads.dataset(folder, format=format, ignore_prefixes=["_", ".", METADATA_FILE]).to_table()
    if len(stored) != steps + 1:
        raise DataError(
            f"{where} holds {plural(len(stored), 'row')}, of which Minari reads {steps + 1}: write it as shorter "
            "episodes, or in HDF5"
        )
    for name in ("observations", "actions", "rewards", *_FLAGS):
        values = stored[name].slice(0, steps + (name == "observations"))
        if any(map(_has_nulls, values.chunks)):
            raise DataError(f"{where} in {name} holds nulls: fill them")


def _has_nulls(array: pa.Array) -> bool:
    if pa.types.is_struct(array.type):
        return bool(array.null_count) or any(map(_has_nulls, array.flatten()))
    return bool(array.null_count) or (pa.types.is_fixed_size_list(array.type) and _has_nulls(array.flatten()))


def _block(eps_id: str, columns: dict[str, NDArray[Any]], record: Mapping[str, Any], where: str) -> Block:
    """One episode.

    Raises:
        DataError: columns of other lengths than the rewards.
        RowError: a flag in the middle.
    """
    steps = len(columns[Columns.REWARDS])
    flags = {name: _array(record[name], f"{where} in {name}") for name in _FLAGS}
    for name, column in {**columns, **flags}.items():
        expected = steps + is_per_observation(name)
        if len(column) != expected:
            raise DataError(
                f"{where} has {plural(len(column), 'value')} of {name} and {plural(steps, 'reward')}, expected "
                f"{expected}"
            )
    for name, flag in flags.items():
        if flag[:-1].any():
            raise RowError(
                f"{where} continues after {name} is true at step {np.flatnonzero(flag)[0]} of {steps}: store it as two "
                "episodes",
                kind="goes-on",
            )
    terminated, truncated = (flag[-1:].astype(np.bool_) for flag in flags.values())
    return Block(
        columns,
        np.array([steps]),
        np.array([eps_id], dtype=object),
        np.zeros(1, np.int64),
        terminated,
        truncated,
    )


def _infos(infos: Mapping[str, Any], observations: int, where: str) -> NDArray[np.object_]:
    """`[observations]` JSON text of the infos; the first is empty if the one of `reset` was not kept."""
    texts = [info_to_json(info) for info in _per_step(infos)]
    missing = observations - len(texts)
    if missing not in (0, 1):
        raise DataError(
            f"{where}: found {plural(len(texts), 'info')}, expected {observations}, one per observation, or "
            "one less"
        )
    return np.array([EMPTY_INFO] * missing + texts, dtype=object)


def _per_step(node: Any) -> list[Any]:
    """The values of each step, of a tree whose arrays hold all steps; parts of tuples are `_index_0`, …"""
    if not isinstance(node, Mapping):
        return [value.decode() if isinstance(value, bytes) else value for value in np.asarray(node).tolist()]
    rows = zip(*map(_per_step, node.values()), strict=True)
    indices = [f"_index_{i}" for i in range(len(node))]
    if node.keys() == set(indices):
        order = [list(node).index(index) for index in indices]
        return [[row[i] for i in order] for row in rows]
    return [dict(zip(node, row, strict=True)) for row in rows]
