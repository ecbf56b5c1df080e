"""The driver's access to storage, in a separate thread: storage may hang, the heartbeat must not."""

from __future__ import annotations

import threading
import traceback
from datetime import UTC
from typing import Final

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Attempt
from hindcast.api.status import CheckpointStatus
from hindcast.cluster.lease import read_lease_holder
from hindcast.cluster.log import DriverLog
from hindcast.cluster.reporting import ReportSender
from hindcast.errors import UserError
from hindcast.learn.checkpoint_record import (
    BEST_FILE,
    FOLDER_NAME,
    RECORD_FILE,
    Best,
    CheckpointRecord,
    folder_name,
    parse,
)
from hindcast.names import EPISODE_RETURN_MEAN
from hindcast.run.claim import (
    CHECKPOINTS_FOLDER,
    has_foreign_files,
    is_claimed_by_another,
    log_file,
    run_folder,
    state_folder,
)
from hindcast.storage.location import Location, resolve

POLL_INTERVAL_SECONDS: Final = 15.0


class StorageMonitor:
    """Uploads the log to the run folder, and watches the folder for checkpoints and a later attempt.

    Args:
        resource: resource of the run folder.
        attempt: attempt of this driver.
        log: log to upload.
        sender: receives the status of checkpoints.

    Attributes:
        is_superseded: a later attempt has started in the run folder, or `abandon` was called.
    """

    def __init__(
        self,
        resource: OfflineRecording | OfflineTraining,
        attempt: Attempt,
        log: DriverLog,
        sender: ReportSender,
    ) -> None:
        self.is_superseded = False
        self._resource = resource
        self._ray_job_name = attempt.ray_job_name
        self._log = log
        self._sender = sender
        self._has_held_lease = False
        self._last_error_text = ""
        self._stop_event = threading.Event()
        self._done_event = threading.Event()
        threading.Thread(target=self._run, name="hindcast-storage", daemon=True).start()

    def stop(self, timeout_seconds: float) -> None:
        """Let the thread poll once more and end; wait for its end at most `timeout_seconds`."""
        self._stop_event.set()
        self._done_event.wait(timeout_seconds)

    def abandon(self) -> None:
        """Let the thread end without another poll; do not wait for it."""
        self.is_superseded = True
        self._stop_event.set()

    def poll(self) -> None:
        """Check the lease, upload the log and report the checkpoints, once; print an error unless it repeats."""
        try:
            self._check_lease()
            if self.is_superseded or not self._can_write_log():
                return
            self._log.upload(log_file(self._resource, self._ray_job_name))
            if isinstance(self._resource, OfflineTraining):
                status = read_checkpoint_status(run_folder(self._resource).child(CHECKPOINTS_FOLDER))
                if status is not None:
                    self._sender.set_checkpoint(status)
        except Exception as error:  # a bug here must not end the thread
            if str(error) != self._last_error_text:
                self._last_error_text = str(error)
                print(f"the run folder could not be updated; the update will be retried: {error}")
                if not isinstance(error, UserError):
                    traceback.print_exc()

    def _run(self) -> None:
        while not self._stop_event.wait(POLL_INTERVAL_SECONDS):
            self.poll()
        if not self.is_superseded:
            self.poll()
        self._done_event.set()

    def _check_lease(self) -> None:
        holder = read_lease_holder(state_folder(self._resource))
        holds_lease = holder is not None and holder["child"] == self._ray_job_name
        self.is_superseded = self.is_superseded or (self._has_held_lease and not holds_lease)
        self._has_held_lease = self._has_held_lease or holds_lease

    def _can_write_log(self) -> bool:
        """Return True unless the folder contains files of another run or of the user."""
        state = state_folder(self._resource)
        if is_claimed_by_another(state, self._resource):
            return False
        if isinstance(self._resource, OfflineTraining):
            return True
        return not has_foreign_files(resolve(self._resource.spec.output.path), state)


def read_checkpoint_status(folder: Location) -> CheckpointStatus | None:
    """Return the status of a folder of checkpoints: the latest and the best; None if the folder has no checkpoint.

    Raises:
        UserError: storage failed, or a checkpoint was deleted during the call.
    """
    names = sorted(entry.relative_path for entry in folder.list() if FOLDER_NAME.match(entry.relative_path))
    complete_names = [name for name in names if folder.child(name, RECORD_FILE).exists()]
    if not complete_names:
        return None
    latest_folder = folder.child(max(complete_names, key=lambda name: (len(name), name)))
    record = parse(latest_folder.child(RECORD_FILE), CheckpointRecord)
    save_time = latest_folder.child(RECORD_FILE).info().mtime
    file = folder.child(BEST_FILE)
    best = parse(file, Best) if file.exists() else None
    is_best_by_return = best is not None and best.metric == EPISODE_RETURN_MEAN
    return CheckpointStatus(
        path=str(latest_folder),
        iteration=record.training.iteration,
        save_time=None if save_time is None else save_time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        best_path=str(folder.child(folder_name(best.updates))) if best else None,
        best_episode_return_mean=best.score if best and is_best_by_return else None,
        best_estimated_return=best.score if best and not is_best_by_return else None,
    )
