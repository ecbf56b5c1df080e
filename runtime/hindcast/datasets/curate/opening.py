"""What is read: sources of any kind, and what was written, read back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hindcast.datasets.curate.target import Target
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.index_cache import cache_folder
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.sources import is_unchanged
from hindcast.datasets.watch import Watch
from hindcast.errors import DataError, SpecError
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import Location, resolve

_ORIGIN: Final = ("environment", "seed", "policy", "recorder", "versions", "connectors")


def open_source(reading: Reading, watch: Watch) -> Dataset:
    """The data of a reading, prepared where they are no whole episodes; with the columns that it asks for."""
    return open_data(reading, watch=watch)


def origin_of(readings: Sequence[Reading]) -> dict[str, Any]:
    """What the manifests of all sources say alike of where the data come from."""
    manifests = [
        read_manifest(resolve(path, reading.filesystem)) for reading in readings for path in reading.paths
    ]
    known = [manifest for manifest in manifests if manifest is not None]
    if not known or len(known) < len(manifests):
        return {}
    return {
        name: getattr(known[0], name)
        for name in _ORIGIN
        if all(getattr(manifest, name) == getattr(known[0], name) for manifest in known)
    }


def refuse_overlap(readings: Sequence[Reading], targets: Sequence[Location]) -> None:
    """Make sure that nothing is written into what is read.

    Raises:
        SpecError: a destination that is a source, lies in one, or has one in it; or two that do so.
    """
    sources = [resolve(path, reading.filesystem) for reading in readings for path in reading.paths]
    for number, target in enumerate(targets):
        for other in (*sources, *targets[:number]):
            if _is_inside(target, other) or _is_inside(other, target):
                raise SpecError(
                    f"{target} and {other} are the same folder, or one is in the other: write to a folder of its own"
                )


@contextmanager
def open_back(target: Target, watch: Watch) -> Iterator[Dataset]:
    """What lies in the target's folder now, each file compared with its checksum.

    Exported layouts are prepared for it, in the cache, as the files of anybody else.

    Raises:
        DataError: a file that is not as it was written.
    """
    try:
        if not target.is_exported:
            yield open_dataset(target.folder, verify=True)
            return
        _check_files(target.folder, watch)
        cache = cache_folder().child(f"verify-{uuid.uuid4().hex[:8]}")
        try:
            yield open_data(Reading((target.folder,)), cache=str(cache), watch=Watch(check=watch.check))
        finally:
            cache.delete()
    except DataError as error:
        raise DataError(f"{error} (--replace writes {target.folder} anew)") from error


def _check_files(folder: Location, watch: Watch) -> None:
    manifest = read_manifest(folder)
    assert manifest is not None
    for file in manifest.files:
        watch.check()
        if not is_unchanged(folder, file):
            raise DataError(f"{folder.child(file.path)} was changed since it was written")


def _is_inside(one: Location, other: Location) -> bool:
    if one.backend.root != other.backend.root:
        return False
    inner, outer = _real(one), _real(other)
    return inner == outer or inner.startswith(f"{outer}/")


def _real(location: Location) -> str:
    path = str(Path(location.path).resolve()) if location.is_local else location.path
    return path.rstrip("/")
