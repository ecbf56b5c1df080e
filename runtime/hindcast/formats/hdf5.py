"""HDF5 files, opened and read so that nothing outside the file is touched and every fault is a sentence.

HDF5 can name other files in four ways: external links, external storage, virtual datasets, and soft links that
lead over one of these. None is followed.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.errors import DataError, UserError
from hindcast.formats.format import require_package
from hindcast.storage.failures import reason_of
from hindcast.storage.location import Location

SUFFIXES: Final = (".hdf5", ".h5", ".hdf")
_READ_AHEAD: Final = 1 << 20
_MAX_LEAVES: Final = 4096
_MAX_DEPTH: Final = 16

Group = Any  # h5py.Group
Dataset = Any  # h5py.Dataset


@contextmanager
def open_file(location: Location) -> Iterator[Group]:
    """The file's root group.

    Raises:
        DataError: h5py is not installed; not an HDF5 file, or a damaged one.
        StorageError: it cannot be read.
    """
    h5py = require_package(location, "h5py", "hdf5")
    with (
        _source(location) as source,
        translate_errors(location),
        h5py.File(source, "r", locking=False) as file,
    ):
        yield file


@contextmanager
def translate_errors(location: Location, node: Any = None, name: str = "") -> Iterator[None]:
    """Turn what h5py raises into a sentence with the file and the path in it: of a node, or a name in it."""
    try:
        yield
    except UserError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        inside = "/" if node is None else _path(node, name)
        raise DataError(
            f"{location} is damaged, or is not an HDF5 file (at {inside}): {reason_of(error)}; copy it again"
        ) from error


def child_names(location: Location, group: Group) -> list[str]:
    """What a group holds, sorted."""
    with translate_errors(location, group):
        return sorted(group)


def open_child(location: Location, group: Group, name: str) -> Any:
    """A group or dataset in a group.

    Raises:
        DataError: it is missing, is in another file, or holds neither numbers nor text.
    """
    h5py = require_package(location, "h5py", "hdf5")
    with translate_errors(location, group, name):
        links, encoded = group.id.links, name.encode()
        if not links.exists(encoded):  # `name in group` would follow links
            raise DataError(f"{location} has no {_path(group, name)}: {_holds(group)}")
        if links.get_info(encoded).type != h5py.h5l.TYPE_HARD:
            raise DataError(
                f"{location} has a link at {_path(group, name)}, which may lead out of the file and is not followed: "
                "copy what it leads to into the file"
            )
        found = h5py.h5o.open(group.id, encoded)
        if isinstance(found, h5py.h5g.GroupID):
            return h5py.Group(found)
        if not isinstance(found, h5py.h5d.DatasetID):
            raise DataError(f"{location} has neither a group nor a dataset at {_path(group, name)}")
        _check(location, found, _path(group, name))
        return h5py.Dataset(found, readonly=True)


def collect_datasets(
    location: Location, node: Any, skip: Collection[str] = (), depth: int = 0
) -> dict[str, Dataset]:
    """All datasets below a group by their path in it (`a/b`), sorted; a dataset by itself is at "".

    Args:
        skip: names in the group that are left out.
        depth: of the group below the one that was asked for.

    Raises:
        DataError: as `child`; groups nested without end.
    """
    if not hasattr(node, "keys"):
        return {"": node}
    if depth > _MAX_DEPTH:
        raise DataError(f"{location} nests groups more than {_MAX_DEPTH} deep (at {node.name})")
    found: dict[str, Dataset] = {}
    for name in child_names(location, node):
        if name in skip:
            continue
        below = collect_datasets(location, open_child(location, node, name), depth=depth + 1)
        found |= {f"{name}/{path}" if path else name: dataset for path, dataset in below.items()}
        if len(found) > _MAX_LEAVES:
            raise DataError(f"{location} has more than {_MAX_LEAVES} datasets below {node.name}")
    return found


def num_rows(location: Location, dataset: Dataset) -> int:
    """The length of a dataset's first dimension.

    Raises:
        DataError: it has none.
    """
    if not dataset.shape:
        raise DataError(f"{location} has one value at {dataset.name}, where one for each step is expected")
    return int(dataset.shape[0])


def is_text(dataset: Dataset) -> bool:
    """Whether a dataset holds strings."""
    import h5py

    return h5py.check_string_dtype(dataset.dtype) is not None


def read_values(location: Location, dataset: Dataset, start: int, stop: int) -> NDArray[Any]:
    """`[stop - start, *shape]`: numbers in native byte order, text as an object array of `str`.

    Raises:
        DataError: damage; text that is not UTF-8.
    """
    with translate_errors(location, dataset):
        if is_text(dataset):
            return np.asarray(dataset.asstr()[start:stop], dtype=object)
        array = np.asarray(dataset[start:stop])
        return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check(location: Location, identifier: Any, path: str) -> None:
    """Make sure that a dataset is in the file, and holds numbers, text, or images compressed to bytes."""
    import h5py

    if identifier.get_offset() is None:  # not in one piece in this file
        stored = identifier.get_create_plist()
        if stored.get_layout() == h5py.h5d.VIRTUAL or stored.get_external_count():
            raise DataError(
                f"{location} keeps the data of {path} in other files, which are not read: copy them into the file"
            )
    dtype = identifier.dtype
    is_known = dtype.kind in "biufc" or h5py.check_string_dtype(dtype) is not None
    if identifier.shape is None or not (is_known or h5py.check_vlen_dtype(dtype) == np.dtype(np.uint8)):
        raise DataError(f"{location} holds neither numbers nor text at {path} (its type is {dtype})")


def _path(node: Any, name: str) -> str:
    return f"{node.name.rstrip('/')}/{name}".rstrip("/") or "/"


def _holds(group: Group) -> str:
    found = sorted(group)
    return f"it holds {', '.join(found[:8])}{' …' if len(found) > 8 else ''}" if found else "it is empty"


@contextmanager
def _source(location: Location) -> Iterator[Any]:
    if location.is_local:
        yield location.path
        return
    stream = location.open()
    with stream, io.BufferedReader(stream, _READ_AHEAD) as source:
        yield source
