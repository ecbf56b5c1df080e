"""Reads back what was written, and compares it with what was read before."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from hindcast.datasets.content import Content
from hindcast.datasets.curate.target import Target
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.footers import cache_folder
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.sources import listed_files
from hindcast.datasets.watch import Watch
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.formats.spec import DataSpec
from hindcast.worker_processes import count_workers, each

_UNITS_AT_ONCE = 8


def verify(spec: DataSpec, content: Content, target: Target, watch: Watch) -> str | None:
    """How what is read back differs from the spec and content that were written, in words; None if it does not.

    Raises:
        DataError: a file that was changed since it was written.
    """
    with _read_back(target, watch) as back:
        found, units = Content(), range(len(back.units))
        slices = [units[i : i + _UNITS_AT_ONCE] for i in units[::_UNITS_AT_ONCE]]
        watch.progress("Verifying", 0, content.timesteps)
        workers = count_workers(len(slices), back.nbytes)
        for part in each(_content, back, slices, workers, watch.check):
            found += part
            watch.progress("Verifying", min(found.timesteps, content.timesteps), content.timesteps)
        return content.difference(found) or back.spec.difference(spec)


@contextmanager
def _read_back(target: Target, watch: Watch) -> Iterator[Dataset]:
    """The data in the target's folder, each file compared with its checksum.

    Exported layouts are prepared for it, in the cache, like files of other tools.
    """
    try:
        if not target.is_exported:
            yield open_dataset(target.folder, verify=True)
            return
        manifest = read_manifest(target.folder)
        assert manifest is not None
        listed_files(target.folder, manifest.files, verify=True)
        watch.check()
        cache = cache_folder().child(f"verify-{uuid.uuid4().hex[:8]}")
        try:
            yield open_data(Reading((target.folder,)), cache=str(cache), watch=Watch(check=watch.check))
        finally:
            cache.delete()
    except DataError as error:
        raise DataError(f"{error} (--replace writes {target.folder} again)") from error


def _content(dataset: Dataset, units: range) -> Content:
    total = Content()
    for number in units:
        total += Content.of(dataset.read(dataset.units[number]))
    return total
