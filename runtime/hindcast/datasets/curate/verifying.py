"""Reads back what was written, and compares it with what was read before."""

from __future__ import annotations

from hindcast.datasets.content import Content
from hindcast.datasets.curate.opening import open_back
from hindcast.datasets.curate.target import Target
from hindcast.datasets.curate.workers import count_workers, each
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.watch import Watch
from hindcast.formats.spec import DataSpec

_UNITS_AT_ONCE = 8


def verify(spec: DataSpec, content: Content, target: Target, watch: Watch) -> str | None:
    """Read everything back.

    Args:
        spec: of what was written.
        content: of what was written.
        target: where it lies.
        watch: hears how it goes, and may stop it.

    Returns:
        What is there and should not be, in words; None where all is as it was.

    Raises:
        DataError: a file that is not as it was written.
    """
    with open_back(target, watch) as back:
        found, units = Content(), range(len(back.units))
        slices = [units[i : i + _UNITS_AT_ONCE] for i in units[::_UNITS_AT_ONCE]]
        watch.progress("Verifying", 0, content.timesteps)
        workers = count_workers(len(slices), back.nbytes)
        for part in each(_content, back, slices, workers, watch.check):
            found += part
            watch.progress("Verifying", min(found.timesteps, content.timesteps), content.timesteps)
        return content.difference(found) or back.spec.difference(spec)


def _content(dataset: Dataset, units: range) -> Content:
    total = Content()
    for number in units:
        total += Content.of(dataset.read(dataset.units[number]))
    return total
