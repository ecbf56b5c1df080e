"""HDF5 files, opened and read so that nothing outside the file is touched and every fault is a sentence.

HDF5 can name other files in four ways: external links, external storage, virtual datasets, and soft links that
lead over one of these. None is followed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from numpy.typing import NDArray

from hindcast.errors import DataError, UserError
from hindcast.formats.hdf5.dataset import Dataset
from hindcast.storage.failures import reason_of
from hindcast.storage.location import Location

SUFFIXES: Final = (".hdf5", ".h5", ".hdf")
_READ_AHEAD: Final = 1 << 20
_MAX_LEAVES: Final = 4096
_MAX_DEPTH: Final = 16

Group = Any  # h5py.Group


@contextmanager
def opened(location: Location) -> Iterator[Group]:
    """The file's root group.

    Raises:
        DataError: h5py is not installed; not an HDF5 file, or a damaged one.
        StorageError: it cannot be read.
    """
    h5py = _h5py(location)
    with _source(location) as source, faults(location), h5py.File(source, "r", locking=False) as file:
        yield file


@contextmanager
def faults(location: Location, node: Any = None, name: str = "") -> Iterator[None]:
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


def names(location: Location, group: Group) -> list[str]:
    """What a group holds, sorted."""
    with faults(location, group):
        return sorted(group)


def _has(group: Group, name: str) -> bool:
    """Whether a group holds the name. (`name in group` would follow links.)"""
    return bool(group.id.links.exists(name.encode()))


def child(location: Location, group: Group, name: str) -> Any:
    """A group or dataset in a group.

    Raises:
        DataError: it is missing, is in another file, or holds neither numbers nor text.
    """
    h5py = _h5py(location)
    with faults(location, group, name):
        encoded = name.encode()
        try:
            link = group.id.links.get_info(encoded)
        except (KeyError, RuntimeError):
            if _has(group, name):
                raise
            raise DataError(f"{location} has no {_path(group, name)}: {_holds(group)}") from None
        if link.type != h5py.h5l.TYPE_HARD:
            raise DataError(
                f"{location} has a link at {_path(group, name)}, which may lead out of the file and is not followed: "
                "copy what it leads to into the file"
            )
        found = h5py.h5o.open(group.id, encoded)
        if isinstance(found, h5py.h5g.GroupID):
            return h5py.Group(found)
        if not isinstance(found, h5py.h5d.DatasetID):
            raise DataError(f"{location} has neither a group nor a dataset at {_path(group, name)}")
        return _checked(location, Dataset(found))


def _is_group(node: Any) -> bool:
    """Whether it is a group (else a dataset)."""
    return not isinstance(node, Dataset)


def datasets(location: Location, node: Any, depth: int = 0) -> dict[str, Dataset]:
    """All datasets below a group by their path in it (`a/b`), sorted; a dataset by itself is at "".

    Raises:
        DataError: as `child`; groups nested without end.
    """
    if not _is_group(node):
        return {"": node}
    if depth > _MAX_DEPTH:
        raise DataError(f"{location} nests groups more than {_MAX_DEPTH} deep (at {node.name})")
    found: dict[str, Dataset] = {}
    for name in names(location, node):
        below = datasets(location, child(location, node, name), depth + 1)
        found |= {f"{name}/{path}" if path else name: dataset for path, dataset in below.items()}
        if len(found) > _MAX_LEAVES:
            raise DataError(f"{location} has more than {_MAX_LEAVES} datasets below {node.name}")
    return found


def rows(location: Location, dataset: Dataset) -> int:
    """The length of a dataset's first dimension.

    Raises:
        DataError: it has none.
    """
    if not dataset.shape:
        raise DataError(f"{location} has one value at {dataset.name}, where one for each step is expected")
    return int(dataset.shape[0])


def values(location: Location, dataset: Dataset, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """`[stop - start, *shape]`: numbers in native byte order, text as an object array of `str`.

    Raises:
        DataError: damage; text that is not UTF-8.
    """
    with faults(location, dataset):
        return dataset.read(start, stop)


def _checked(location: Location, dataset: Dataset) -> Dataset:
    if dataset.is_external:
        raise DataError(
            f"{location} keeps the data of {dataset.name} in other files, which are not read: "
            "copy them into the file"
        )
    is_known = dataset.dtype.kind in "biufc" or dataset.is_text or dataset.is_bytes
    if dataset.is_empty or not is_known:
        raise DataError(
            f"{location} holds neither numbers nor text at {dataset.name} (its type is {dataset.dtype})"
        )
    return dataset


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


def _h5py(location: Location) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            f"reading {location} takes h5py, which is not installed: pip install 'hindcast-rl[hdf5]'"
        ) from error
    return h5py
