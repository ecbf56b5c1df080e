"""Convert, merge and split datasets: write all or some of their episodes as new datasets, in any format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from hindcast.datasets.curate.writing import WriteResult, check_target, write
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.datasets.merging import OnConflict, merge
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.sources import real_path
from hindcast.datasets.target import Target
from hindcast.errors import SpecError
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import Location

_ORIGIN_FIELDS: Final = ("environment", "seed", "policy", "recorder", "versions", "connectors")


def convert_data(
    reading: Reading,
    target: Target,
    hooks: Hooks = NO_HOOKS,
    choose: Callable[[Dataset], Dataset] = lambda dataset: dataset,
) -> WriteResult:
    """Write the data of a reading as a new dataset.

    Args:
        reading: what to read, and how.
        target: the folder to write to, and its format.
        hooks: notified of progress and of notes on the data.
        choose: selects episodes, such as by `Dataset.filter`; all by default.

    Raises:
        SpecError: the destination overlaps a source.
        UserError: as `write`, or the data cannot be read or selected.
    """
    _check_overlap([reading], [target.folder])
    return _write(choose(open_data(reading, hooks=hooks)), [reading], target, hooks)


def merge_data(
    readings: Sequence[Reading], target: Target, on_conflict: OnConflict = "Refuse", hooks: Hooks = NO_HOOKS
) -> WriteResult:
    """Write several sources as one dataset; see `merge` for `on_conflict`."""
    _check_overlap(readings, [target.folder])
    dataset = merge([open_data(reading, hooks=hooks) for reading in readings], on_conflict)
    return _write(dataset, readings, target, hooks)


def split_data(
    reading: Reading,
    remaining_target: Target,
    fraction_target: Target,
    *,
    fraction: float,
    seed: int = 0,
    hooks: Hooks = NO_HOOKS,
) -> tuple[WriteResult, WriteResult]:
    """Write the remaining episodes to one folder, and a fraction of all episodes to another; see `Dataset.split`.

    Returns:
        The result of `remaining_target`, then that of `fraction_target`.

    Raises:
        SpecError: a destination overlaps a source or the other destination, or the fraction is not between 0 and 1.
        UserError: as `write`, or the data cannot be read.
    """
    _check_overlap([reading], [remaining_target.folder, fraction_target.folder])
    outputs = list(
        zip(
            open_data(reading, hooks=hooks).split(fraction, seed),
            (remaining_target, fraction_target),
            strict=True,
        )
    )
    # Both targets are checked before either is written.
    for dataset, target in outputs:
        check_target(dataset, target)
    remaining_result, fraction_result = (
        _write(dataset, [reading], target, hooks) for dataset, target in outputs
    )
    return remaining_result, fraction_result


def _write(dataset: Dataset, readings: Sequence[Reading], target: Target, hooks: Hooks) -> WriteResult:
    for note in dataset.notes:
        hooks.note(note)
    return write(dataset, target, _common_origin(readings), hooks)


def _common_origin(readings: Sequence[Reading]) -> dict[str, Any]:
    """Return the fields about the data's origin in which the manifests of all sources agree."""
    manifests = [read_manifest(source) for reading in readings for source in reading.locations]
    known_manifests = [manifest for manifest in manifests if manifest is not None]
    if not known_manifests or len(known_manifests) < len(manifests):
        return {}
    return {
        name: getattr(known_manifests[0], name)
        for name in _ORIGIN_FIELDS
        if all(getattr(manifest, name) == getattr(known_manifests[0], name) for manifest in known_manifests)
    }


def _check_overlap(readings: Sequence[Reading], targets: Sequence[Location]) -> None:
    """Check that no destination equals, contains or is inside a source or another destination."""
    sources = [source for reading in readings for source in reading.locations]
    for i, target in enumerate(targets):
        for location in (*sources, *targets[:i]):
            if _is_inside(target, location) or _is_inside(location, target):
                raise SpecError(
                    f"{target} and {location} are the same folder, or one contains the other: write to a "
                    "separate folder"
                )


def _is_inside(location: Location, folder: Location) -> bool:
    """Return True if the location is the folder or inside it."""
    if location.backend.root != folder.backend.root:
        return False
    inner_path, outer_path = (real_path(item).rstrip("/") for item in (location, folder))
    return inner_path == outer_path or inner_path.startswith(f"{outer_path}/")
