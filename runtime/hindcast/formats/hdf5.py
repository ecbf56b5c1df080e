"""Opening and reading HDF5 files, without following links to other files.

HDF5 can refer to other files in four ways: by external links, external storage, virtual datasets, and soft links that
lead to one of these. Hindcast follows none of them.
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
from hindcast.formatting import first_few
from hindcast.storage.failures import reason_of
from hindcast.storage.location import Location

SUFFIXES: Final = (".hdf5", ".h5", ".hdf")
_READ_AHEAD_BYTES: Final = 1 << 20
# In an invalid file, hard links can form cycles of groups; both limits end the search for datasets.
_MAX_LEAVES: Final = 4096
_MAX_DEPTH: Final = 16

Group = Any  # h5py.Group
Dataset = Any  # h5py.Dataset


@contextmanager
def open_file(location: Location) -> Iterator[Group]:
    """Open the file's root group.

    Raises:
        DataError: h5py is not installed; the file is not HDF5, or is damaged.
        StorageError: the file cannot be read.
    """
    h5py = require_package(location, "h5py", "hdf5")
    # HDF5's file locks fail on file systems without locks, and reading needs no lock
    with (
        _open_source(location) as source,
        translate_errors(location),
        h5py.File(source, "r", locking=False) as file,
    ):
        yield file


@contextmanager
def translate_errors(location: Location, node: Any = None, name: str = "") -> Iterator[None]:
    """Convert h5py's errors to `DataError`.

    Args:
        location: the file, for the message.
        node: group or dataset that is read, for the message; the root by default.
        name: name of the child of `node` that is read; by default `node` itself.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        node_path = "/" if node is None else _join_path(node, name)
        raise DataError(
            f"is damaged, or is not an HDF5 file (at {node_path}): {reason_of(error)}; copy it again",
            path=str(location),
        ) from error


def list_child_names(location: Location, group: Group) -> list[str]:
    """List the names in a group, sorted."""
    with translate_errors(location, group):
        return sorted(group)


def open_child(location: Location, group: Group, name: str) -> Any:
    """Open a group or dataset in a group.

    Raises:
        DataError: the child is missing, is a link, keeps its data in other files, or holds neither numbers, text nor
            bytes.
    """
    h5py = require_package(location, "h5py", "hdf5")
    with translate_errors(location, group, name):
        links, name_bytes = group.id.links, name.encode()
        if not links.exists(name_bytes):  # `name in group` would follow links
            raise DataError(f"has no {_join_path(group, name)}: {_describe_group(group)}", path=str(location))
        if links.get_info(name_bytes).type != h5py.h5l.TYPE_HARD:
            raise DataError(
                f"has a link at {_join_path(group, name)}, which may lead out of the file "
                "and is not followed: copy its target into the file",
                path=str(location),
            )
        object_id = h5py.h5o.open(group.id, name_bytes)
        if isinstance(object_id, h5py.h5g.GroupID):
            return h5py.Group(object_id)
        if not isinstance(object_id, h5py.h5d.DatasetID):
            raise DataError(
                f"has neither a group nor a dataset at {_join_path(group, name)}", path=str(location)
            )
        _check_dataset(location, object_id, _join_path(group, name))
        return h5py.Dataset(object_id, readonly=True)


def collect_datasets(
    location: Location, node: Any, skip: Collection[str] = (), depth: int = 0
) -> dict[str, Dataset]:
    """Collect all datasets below a group by their path in it (`a/b`), sorted; a dataset by itself has the path "".

    Args:
        location: the file, for messages.
        node: the group, or a dataset.
        skip: names directly in the group to leave out.
        depth: number of recursive calls above this one.

    Raises:
        DataError: see `open_child`; groups are nested too deeply, or there are too many datasets.
    """
    if not hasattr(node, "keys"):  # only groups have keys
        return {"": node}
    if depth > _MAX_DEPTH:
        raise DataError(f"{location} nests groups more than {_MAX_DEPTH} deep (at {node.name})")
    datasets_by_path: dict[str, Dataset] = {}
    for name in list_child_names(location, node):
        if name in skip:
            continue
        children = collect_datasets(location, open_child(location, node, name), depth=depth + 1)
        datasets_by_path |= {
            f"{name}/{path}" if path else name: dataset for path, dataset in children.items()
        }
        if len(datasets_by_path) > _MAX_LEAVES:
            raise DataError(f"has more than {_MAX_LEAVES} datasets below {node.name}", path=str(location))
    return datasets_by_path


def count_rows(location: Location, dataset: Dataset) -> int:
    """Return the length of a dataset's first dimension.

    Raises:
        DataError: the dataset holds a single value.
    """
    if not dataset.shape:
        raise DataError(f"has one value at {dataset.name}: expected one for each step", path=str(location))
    return int(dataset.shape[0])


def is_text(dataset: Dataset) -> bool:
    """Return whether a dataset holds strings."""
    import h5py

    return h5py.check_string_dtype(dataset.dtype) is not None


def read_values(location: Location, dataset: Dataset, start: int, stop: int) -> NDArray[Any]:
    """Read the rows `start` to `stop` (exclusive), `[stop - start, *shape]`.

    Numbers have native byte order; text is an object array of `str`.

    Raises:
        DataError: damage; text that is not UTF-8.
    """
    with translate_errors(location, dataset):
        if is_text(dataset):
            return np.asarray(dataset.asstr()[start:stop], dtype=object)
        array = np.asarray(dataset[start:stop])
        return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_dataset(location: Location, dataset_id: Any, path: str) -> None:
    """Check that a dataset's values are in this file, and are numbers, text, or bytes (compressed images)."""
    import h5py

    if dataset_id.get_offset() is None:  # the data do not lie in this file in one piece
        creation_properties = dataset_id.get_create_plist()
        if creation_properties.get_layout() == h5py.h5d.VIRTUAL or creation_properties.get_external_count():
            raise DataError(
                f"{location} keeps the data of {path} in other files, which are not read: copy the data into the file"
            )
    dtype = dataset_id.dtype
    is_supported = dtype.kind in "biufc" or h5py.check_string_dtype(dtype) is not None
    if dataset_id.shape is None or not (is_supported or h5py.check_vlen_dtype(dtype) == np.dtype(np.uint8)):
        raise DataError(f"holds neither numbers nor text at {path} (its type is {dtype})", path=str(location))


def _join_path(node: Any, name: str) -> str:
    return f"{node.name.rstrip('/')}/{name}".rstrip("/") or "/"


def _describe_group(group: Group) -> str:
    names = sorted(group)
    return f"it holds {first_few(names, 8)}" if names else "it is empty"


@contextmanager
def _open_source(location: Location) -> Iterator[Any]:
    if location.is_local:
        yield location.path
        return
    # h5py reads metadata in small parts; without a buffer each of them would be a request to the store
    stream = location.open()
    with stream, io.BufferedReader(stream, _READ_AHEAD_BYTES) as source:
        yield source
