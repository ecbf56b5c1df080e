"""Where a run keeps its own files."""

from __future__ import annotations

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.run.claim import LOGS
from hindcast.storage.location import Location, resolve

CHECKPOINTS_FOLDER = "checkpoints"


def run_folder(resource: OfflineTraining) -> Location:
    """`<checkpoint.path>/<name>/r<revision>`."""
    return resolve(resource.spec.checkpoint.path).child(resource.metadata.name, f"r{resource.spec.revision}")


def state_folder(resource: OfflineRecording | OfflineTraining) -> Location:
    """The run folder of a training, `_hindcast` of a recording's dataset."""
    if isinstance(resource, OfflineTraining):
        return run_folder(resource)
    return resolve(resource.spec.output.path).child(FOLDER)


def log_file(resource: OfflineRecording | OfflineTraining, child: str) -> Location:
    """The log of one attempt on a cluster; `child` is the name of its RayJob."""
    return state_folder(resource).child(LOGS, f"{child}.log")
