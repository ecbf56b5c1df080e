"""Minari's episodes in Arrow or Parquet: a folder `<n>` each, of one row more than the episode has steps.

The last row holds the final observation; its action, reward and flags are padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hindcast.episodes.columns import SEPARATOR, Columns
from hindcast.errors import DataError, UserError
from hindcast.foreign.hdf5.minari_episodes import StoredEpisode, check_leaves
from hindcast.foreign.hdf5.minari_metadata import MinariMetadata
from hindcast.foreign.hdf5.minari_values import decode_images, infos_to_json
from hindcast.store.filesystem import Location
from hindcast.store.storage_errors import reason_of, storage_errors


class Stored(NamedTuple):
    """An episode that is there: its number, its files in order, their bytes together."""

    number: int
    files: tuple[str, ...]
    nbytes: int


def episodes_in(folder: Location, format: str) -> list[Stored]:
    """The folder's episodes in order.

    Raises:
        DataError: an episode's folder without a file.
    """
    files: dict[int, list[tuple[str, int]]] = {}
    for entry in folder.list(recursive=True):
        episode, _, name = entry.relative.partition("/")
        if not episode.isdigit():
            continue
        known = files.setdefault(int(episode), [])
        if entry.is_file and name.endswith(f".{format}"):
            known.append((entry.relative, entry.size))
    for missing, found in files.items():
        if not found:
            raise DataError(f"{folder.child(str(missing))} holds no .{format} file: copy the dataset again")
    return [
        Stored(number, tuple(name for name, _ in found), sum(size for _, size in found))
        for number, found in sorted(files.items())
    ]


def read_episode(
    folder: Location, files: Sequence[str], number: int, metadata: MinariMetadata, with_infos: bool
) -> StoredEpisode:
    """One episode.

    Raises:
        DataError: what is missing, damaged, or built otherwise than the dataset's spaces.
    """
    where, spaces = str(folder.child(str(number))), metadata.leaf_spaces()
    table = pa.concat_tables([_table(folder.child(name), metadata.format) for name in files])
    with _faults(where):
        last = table.num_rows - 1
        if last < 0:
            raise DataError(f"{where} holds no row, not even an observation: copy the dataset again")
        parts = {
            **_leaves(_column(table, "observations", where), Columns.OBS),
            **_leaves(_column(table.slice(0, last), "actions", where), Columns.ACTIONS),
        }
        check_leaves(list(parts), spaces, where)
        columns = {
            name: _values(part, spaces.get(name), f"{where} in {name}") for name, part in parts.items()
        }
        rewards, *flags = (
            _values(_column(table.slice(0, last), name, where), None, f"{where} in {name}")
            for name in ("rewards", "terminations", "truncations")
        )
        columns[Columns.REWARDS] = rewards.astype(np.float64) if rewards.dtype.kind in "biu" else rewards
        if with_infos and "infos" in table.column_names:
            tree = _tree(_column(table, "infos", where))
            if tree:
                columns[Columns.INFOS] = infos_to_json(tree, table.num_rows, where)
    return StoredEpisode(f"{metadata.name}/{number}", where, columns, *flags)


@contextmanager
def _faults(where: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where} is damaged, or not written by Minari: {reason_of(error)}") from error


def _table(location: Location, format: str) -> pa.Table:
    with storage_errors("read", location.uri, location.fs):
        stream = location.fs.open_input_file(location.path)
    with stream, _faults(str(location)):
        if format == "parquet":
            return pq.read_table(stream)
        return pa.ipc.open_file(stream).read_all()


def _column(table: pa.Table, name: str, where: str) -> pa.Array:
    if name not in table.column_names:
        raise DataError(f"{where} has no column {name!r}: it has {', '.join(table.column_names)}")
    column = table.column(name).combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _leaves(array: pa.Array, name: str) -> dict[str, pa.Array]:
    if not pa.types.is_struct(array.type):
        return {name: array}
    leaves: dict[str, pa.Array] = {}
    for field, part in zip(array.type, array.flatten(), strict=True):
        leaves |= _leaves(part, f"{name}{SEPARATOR}{field.name}")
    return leaves


def _values(array: pa.Array, space: gym.Space | None, where: str) -> NDArray[Any]:
    if array.null_count:
        raise DataError(f"{where} is null in row {int(np.flatnonzero(array.is_null())[0])}")
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        shape = getattr(space, "shape", None) or (kind.list_size,)
        return array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), *shape)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        shape = getattr(space, "shape", None)
        if not shape:
            raise DataError(f"{where} holds compressed images, and its space has no shape")
        return decode_images(array.to_pylist(), shape, where)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(array.to_pylist(), dtype=object)
    if pa.types.is_list(kind):
        return np.array(array.to_pylist())
    return array.to_numpy(zero_copy_only=False)


def _tree(infos: pa.Array) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for field, part in zip(infos.type, infos.flatten(), strict=True):
        if pa.types.is_struct(field.type):
            tree[field.name] = _tree(part)
        elif pa.types.is_fixed_size_list(field.type):
            sizes = (field.metadata or {}).get(b"shape", b"").decode()
            shape = [int(size) for size in sizes.split(",") if size] or [field.type.list_size]
            tree[field.name] = part.flatten().to_numpy(zero_copy_only=False).reshape(len(part), *shape)
        else:
            tree[field.name] = np.array([*part.to_pylist(), None], dtype=object)[:-1]
    return tree
