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
from hindcast.formats.layout import CellError, RowError
from hindcast.formats.lossless import to_floats
from hindcast.formats.minari.episode_index import EpisodeGroup
from hindcast.formats.minari.metadata import METADATA_FILE, MinariMetadata
from hindcast.formats.spec import DataSpec
from hindcast.formatting import plural
from hindcast.storage.failures import reason_of
from hindcast.storage.location import Location

if TYPE_CHECKING:
    from minari.dataset.minari_storage import MinariStorage

_FLAGS: Final = ("terminations", "truncations")
_COPY_BUFFER_BYTES: Final = 8 << 20


@contextmanager
def link_or_copy_files(files: Mapping[str, Location]) -> Iterator[Path]:
    """Make a temporary folder with links to local files and copies of other files.

    Args:
        files: relative path in the folder -> file.

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
                shutil.copyfileobj(source, copy, _COPY_BUFFER_BYTES)
        yield Path(folder)


def read_episodes(location: Location, folder: Path, group: EpisodeGroup, should_read_infos: bool) -> Block:
    """Read the complete episodes of a group.

    Args:
        location: location of the dataset's main file or `metadata.json`.
        folder: local folder with the dataset's files.
        group: episodes to read.
        should_read_infos: whether to read the infos.

    Raises:
        DataError: an episode is missing or damaged, or differs in structure from the dataset's spaces.
    """
    with _translate_errors(str(location), folder, location):
        storage = _open_storage(folder, group.metadata)
    blocks: dict[str, Block] = {}
    for episode in group.episodes:
        source = f"{location} at /episode_{episode.number}"
        if episode.files:
            source = str(location.parent().child(str(episode.number)))
        with _translate_errors(source, folder, location):
            record = next(iter(storage.get_episodes([episode.number])), None)
            if record is None:
                raise DataError("cannot be found: copy the dataset again", path=source)
            columns = _decode_columns(record, group.metadata.spec, source)
            if should_read_infos and record["infos"]:
                columns[Columns.INFOS] = _decode_infos(
                    record["infos"], len(columns[Columns.REWARDS]) + 1, source
                )
            if episode.files:
                num_steps = len(record["rewards"])
                _check_rows(folder / str(episode.number), group.metadata.data_format, num_steps, source)
        blocks[source] = _make_block(f"{group.metadata.dataset_id}/{episode.number}", columns, record, source)
    # raises if episodes differ in their columns
    DataSpec.merge_all((source, DataSpec.from_block(block)) for source, block in blocks.items())
    return Block.concat(list(blocks.values()))


def _open_storage(folder: Path, metadata: MinariMetadata) -> MinariStorage:
    """Open the files with new metadata, which name both spaces, so that Minari creates no environment."""
    from minari.dataset.minari_storage import MinariStorage
    from minari.serialization import serialize_space

    document = {
        "data_format": metadata.data_format,
        "observation_space": serialize_space(metadata.observation_space),
        "action_space": serialize_space(metadata.action_space),
        "jpeg_encoding": metadata.jpeg_encoding is not False,
    }
    # `default`: a serialised space may contain NumPy integers
    (folder / METADATA_FILE).write_text(json.dumps(document, default=int))
    return MinariStorage.read(folder)


@contextmanager
def _translate_errors(source: str, folder: Path, location: Location) -> Iterator[None]:
    """Convert errors of Minari, and of libraries that it uses, to `DataError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = reason_of(error).replace(str(folder), str(location.parent()))
        raise DataError(
            f"is damaged, was not written by Minari, or differs from the dataset's spaces: {reason}",
            path=source,
        ) from error


def _decode_columns(record: Mapping[str, Any], spec: DataSpec, source: str) -> dict[str, NDArray[Any]]:
    """Decode the leaves of observations and actions, and the rewards.

    Raises:
        DataError: the structure or an array's shape differs from the spaces, or values are missing.
    """
    spaces = {
        **flatten_space(spec.observation_space, Columns.OBS),
        **flatten_space(spec.action_space, Columns.ACTIONS),
    }
    leaves = {**flatten(record["observations"], Columns.OBS), **flatten(record["actions"], Columns.ACTIONS)}
    if leaves.keys() != spaces.keys():
        raise DataError(
            f"holds {sorted(leaves)}, but the dataset's spaces have {sorted(spaces)}", path=source
        )
    columns = {name: _to_array(values, f"{source} in {name}") for name, values in leaves.items()}
    for name, column in columns.items():
        shape = spaces[name].shape or ()
        # Lengths of vectors and scalars are checked with the space, of all formats alike.
        if len(shape) > 1 and column.shape[1:] != shape:
            raise DataError(
                f"{source} in {name} holds arrays of {list(column.shape[1:])}, expected {list(shape)}"
            )
    rewards = _to_array(record["rewards"], f"{source} in rewards")
    # Minari stores rewards as integers if all rewards of an episode are whole numbers.
    try:
        columns[Columns.REWARDS] = to_floats(rewards, Columns.REWARDS)
    except CellError as error:
        raise DataError(f"{source}, step {error.row}: {error}") from error
    return columns


def _to_array(values: Any, source: str) -> NDArray[Any]:
    """Convert to numbers in native byte order, or an object array of `str`."""
    if isinstance(values, list):
        if not all(isinstance(value, str) for value in values):
            raise DataError("holds values that are not text", path=source)
        return np.array(values, dtype=object)
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise DataError("holds values that are missing or not numbers", path=source)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_rows(folder: Path, format: str, num_steps: int, source: str) -> None:
    """Check that no data were lost: Minari reads only one batch of an episode's rows, and reads nulls as NaN.

    An episode has `num_steps + 1` rows, of which the last one holds only an observation.
    """
    table = pads.dataset(folder, format=format, ignore_prefixes=["_", ".", METADATA_FILE]).to_table()
    if len(table) != num_steps + 1:
        raise DataError(
            f"holds {plural(len(table), 'row')}, but Minari reads only {num_steps + 1} of them: write "
            "it as shorter episodes, or in HDF5",
            path=source,
        )
    for name in ("observations", "actions", "rewards", *_FLAGS):
        values = table[name].slice(0, num_steps + (name == "observations"))
        if any(map(_has_nulls, values.chunks)):
            raise DataError(f"{source} in {name} holds nulls: fill them")


def _has_nulls(array: pa.Array) -> bool:
    if pa.types.is_struct(array.type):
        return bool(array.null_count) or any(map(_has_nulls, array.flatten()))
    return bool(array.null_count) or (pa.types.is_fixed_size_list(array.type) and _has_nulls(array.flatten()))


def _make_block(
    eps_id: str, columns: dict[str, NDArray[Any]], record: Mapping[str, Any], source: str
) -> Block:
    """Make a block of one episode.

    Raises:
        DataError: a column's length does not match the number of rewards.
        RowError: a flag is true before the last step.
    """
    num_steps = len(columns[Columns.REWARDS])
    flags = {name: _to_array(record[name], f"{source} in {name}") for name in _FLAGS}
    for name, column in {**columns, **flags}.items():
        expected = num_steps + is_per_observation(name)
        if len(column) != expected:
            raise DataError(
                f"has {plural(len(column), 'value')} of {name}, expected {expected} for "
                f"{plural(num_steps, 'reward')}",
                path=source,
            )
    for name, flag in flags.items():
        if flag[:-1].any():
            raise RowError(
                f"has {name} true at step {np.flatnonzero(flag)[0]} of {num_steps} and continues after it: store it "
                "as two episodes",
                kind="goes-on",
                path=source,
            )
    terminated, truncated = (flag[-1:].astype(np.bool_) for flag in flags.values())
    return Block(
        columns,
        np.array([num_steps]),
        np.array([eps_id], dtype=object),
        np.zeros(1, np.int64),
        terminated,
        truncated,
    )


def _decode_infos(infos: Mapping[str, Any], num_observations: int, source: str) -> NDArray[np.object_]:
    """Return infos as JSON texts `[num_observations]`; the first one is empty if the reset's info was not stored."""
    texts = [info_to_json(info) for info in _unstack(infos)]
    num_missing = num_observations - len(texts)
    if num_missing not in (0, 1):
        raise DataError(
            f"found {plural(len(texts), 'info')}, expected {num_observations}, one per observation, or "
            "one fewer",
            path=source,
        )
    return np.array([EMPTY_INFO] * num_missing + texts, dtype=object)


def _unstack(node: Any) -> list[Any]:
    """Convert a tree of arrays over all steps to one value for each step; tuples have the keys `_index_0`, …"""
    if not isinstance(node, Mapping):
        return [value.decode() if isinstance(value, bytes) else value for value in np.asarray(node).tolist()]
    rows = zip(*map(_unstack, node.values()), strict=True)
    indices = [f"_index_{i}" for i in range(len(node))]
    if node.keys() == set(indices):
        positions = [list(node).index(index) for index in indices]
        return [[row[i] for i in positions] for row in rows]
    return [dict(zip(node, row, strict=True)) for row in rows]
