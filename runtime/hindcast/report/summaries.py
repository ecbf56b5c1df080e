"""What a report says of a dataset's content."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from hindcast.datasets.inspection.sample import SAMPLE_STEPS
from hindcast.datasets.inspection.summarising import summarise
from hindcast.datasets.inspection.summary import Summary
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.formats.dataset_folder.exported import exported_recording
from hindcast.formats.dataset_folder.manifest import Manifest
from hindcast.storage.location import Location


def summary_of(folder: Location) -> Summary:
    """A summary of a dataset, or of a recording in an exported layout.

    Raises:
        DataError: it cannot be opened.
        StorageError: storage that refuses or fails.
    """
    exported = exported_recording(folder)
    return summarise(open_dataset(folder)) if exported is None else _of_exported(folder, exported)


def _of_exported(folder: Location, manifest: Manifest) -> Summary:
    """Sizes of all files, and the rest of some that are prepared for it and forgotten."""
    files = manifest.files
    episodes, timesteps = sum(file.episodes for file in files), sum(file.timesteps for file in files)
    chosen = files[:: max(1, timesteps // SAMPLE_STEPS)]
    with TemporaryDirectory() as cache:
        reading = Reading(tuple(folder.child(file.path) for file in chosen))
        summary = summarise(open_data(reading, cache=cache))
    return summary.model_copy(
        update={
            "layouts": (manifest.layout,),
            "episodes": episodes,
            "timesteps": timesteps,
            "bytes": manifest.data_spec.array_bytes(timesteps, episodes),
            "stored_bytes": sum(file.bytes for file in files),
            "files": len(files),
        }
    )
