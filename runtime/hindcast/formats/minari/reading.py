"""Reading episodes with the package `minari` into one `Block`."""

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
    """Make a temporary folder of files, by their names in it: links to local files, copies of others.

    Raises:
        StorageError: a file cannot be read, or there is no room for the copies.
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


def read_episodes(location: Location, folder: Path, group: EpisodeGroup, with_infos: bool) -> Block:
    """Read complete episodes.

    Args:
        folder: local folder of the dataset's files.

    Raises:
        DataError: an episode is missing or damaged, or differs in structure from the dataset's spaces.
    """
    with _translate_errors(str(location), folder, location):
        storage = _open_storage(folder, group.metadata)
    blocks: dict[str, Block] = {}
    for episode in group.episodes:
        where = f"{location} at /episode_{episode.number}"
        if episode.files:
            where = str(location.parent().child(str(episode.number)))
        with _translate_errors(where, folder, location):
            record = next(iter(storage.get_episodes([episode.number])), None)
            if record is None:
                raise DataError(f"{where} cannot be found: copy the dataset again")
            columns = _decode_columns(record, group.metadata.spec, where)
            if with_infos and record["infos"]:
                columns[Columns.INFOS] = _decode_infos(
                    record["infos"], len(columns[Columns.REWARDS]) + 1, where
                )
            if episode.files:
                steps = len(record["rewards"])
                _check_rows(folder / str(episode.number), group.metadata.data_format, steps, where)
        blocks[where] = _make_block(f"{group.metadata.dataset_id}/{episode.number}", columns, record, where)
    # refuses episodes that differ
    DataSpec.merge_all((where, DataSpec.from_block(block)) for where, block in blocks.items())
    return Block.concat(list(blocks.values()))


def _open_storage(folder: Path, metadata: MinariMetadata) -> MinariStorage:
    """Open the files with metadata written here, which name both spaces and no environment that Minari would make."""
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
def _translate_errors(where: str, folder: Path, location: Location) -> Iterator[None]:
    """Raise errors of Minari and of the libraries below it as `DataError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = reason_of(error).replace(str(folder), str(location.parent()))
        raise DataError(
            f"{where} is damaged, was not written by Minari, or differs from the dataset's spaces: {reason}"
        ) from error


def _decode_columns(record: Mapping[str, Any], spec: DataSpec, where: str) -> dict[str, NDArray[Any]]:
    """Decode the leaves of observations and actions, and the rewards.

    Raises:
        DataError: the structure differs from the spaces', values are missing, or images have another shape.
    """
    spaces = {
        **flatten_space(spec.observation_space, Columns.OBS),
        **flatten_space(spec.action_space, Columns.ACTIONS),
    }
    leaves = {**flatten(record["observations"], Columns.OBS), **flatten(record["actions"], Columns.ACTIONS)}
    if leaves.keys() != spaces.keys():
        raise DataError(f"{where} holds {sorted(leaves)}, but the dataset's spaces have {sorted(spaces)}")
    columns = {name: _to_array(values, f"{where} in {name}") for name, values in leaves.items()}
    for name, column in columns.items():
        shape = spaces[name].shape or ()
        if len(shape) > 1 and column.shape[1:] != shape:
            raise DataError(
                f"{where} in {name} holds arrays of {list(column.shape[1:])}, expected {list(shape)}"
            )
    rewards = _to_array(record["rewards"], f"{where} in rewards")
    # Minari stores rewards as integers if all of an episode are whole numbers.
    columns[Columns.REWARDS] = rewards.astype(np.float64) if rewards.dtype.kind in "biu" else rewards
    return columns


def _to_array(values: Any, where: str) -> NDArray[Any]:
    """Convert to numbers in native byte order, or an object array of `str`."""
    if isinstance(values, list):
        if not all(isinstance(value, str) for value in values):
            raise DataError(f"{where} holds values that are not text")
        return np.array(values, dtype=object)
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise DataError(f"{where} holds values that are missing or not numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_rows(folder: Path, format: str, steps: int, where: str) -> None:
    """Check that nothing was lost: Minari reads only one batch of an episode, and reads nulls as NaN."""
    table = pads.dataset(folder, format=format, ignore_prefixes=["_", ".", METADATA_FILE]).to_table()
    if len(table) != steps + 1:
        raise DataError(
            f"{where} holds {plural(len(table), 'row')}, but Minari reads only {steps + 1} of them: write "
            "it as shorter episodes, or in HDF5"
        )
    for name in ("observations", "actions", "rewards", *_FLAGS):
        values = table[name].slice(0, steps + (name == "observations"))
        if any(map(_has_nulls, values.chunks)):
            raise DataError(f"{where} in {name} holds nulls: fill them")


def _has_nulls(array: pa.Array) -> bool:
    if pa.types.is_struct(array.type):
        return bool(array.null_count) or any(map(_has_nulls, array.flatten()))
    return bool(array.null_count) or (pa.types.is_fixed_size_list(array.type) and _has_nulls(array.flatten()))


def _make_block(
    eps_id: str, columns: dict[str, NDArray[Any]], record: Mapping[str, Any], where: str
) -> Block:
    """Make a block of one episode.

    Raises:
        DataError: a column does not fit the rewards in length.
        RowError: a flag is set before the last step.
    """
    steps = len(columns[Columns.REWARDS])
    flags = {name: _to_array(record[name], f"{where} in {name}") for name in _FLAGS}
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


def _decode_infos(infos: Mapping[str, Any], observations: int, where: str) -> NDArray[np.object_]:
    """Return `[observations]` JSON texts of the infos; the first is empty if the info of `reset` was not stored."""
    texts = [info_to_json(info) for info in _unstack(infos)]
    missing = observations - len(texts)
    if missing not in (0, 1):
        raise DataError(
            f"{where}: found {plural(len(texts), 'info')}, expected {observations}, one per observation, or "
            "one fewer"
        )
    return np.array([EMPTY_INFO] * missing + texts, dtype=object)


def _unstack(node: Any) -> list[Any]:
    """Return the values of each step from a tree of arrays over all steps; parts of tuples are named `_index_0`, …"""
    if not isinstance(node, Mapping):
        return [value.decode() if isinstance(value, bytes) else value for value in np.asarray(node).tolist()]
    rows = zip(*map(_unstack, node.values()), strict=True)
    indices = [f"_index_{i}" for i in range(len(node))]
    if node.keys() == set(indices):
        order = [list(node).index(index) for index in indices]
        return [[row[i] for i in order] for row in rows]
    return [dict(zip(node, row, strict=True)) for row in rows]
