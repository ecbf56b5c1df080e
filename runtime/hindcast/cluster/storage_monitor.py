"""The driver's storage work, in a separate thread: storage may hang, the heartbeat must not."""

from __future__ import annotations

import threading
from datetime import UTC
from typing import Final

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Attempt
from hindcast.api.status import CheckpointStatus
from hindcast.cluster.lease import lease_holder
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
    """Keeps the log in the run folder, and sees there what others did: checkpoints, a later attempt.

    Attributes:
        superseded: a later attempt has begun in the run folder.
    """

    def __init__(
        self,
        resource: OfflineRecording | OfflineTraining,
        attempt: Attempt,
        log: DriverLog,
        reporting: ReportSender,
    ) -> None:
        self.is_superseded = False
        self._resource = resource
        self._child = attempt.ray_job_name
        self._log = log
        self._reporting = reporting
        self._had_lease = False
        self._complained = ""
        self._ended = threading.Event()
        self._last_look = threading.Event()
        threading.Thread(target=self._run, name="hindcast-keeper", daemon=True).start()

    def end(self, patience: float) -> None:
        """Look a last time, and wait for it at most so many seconds."""
        self._ended.set()
        self._last_look.wait(patience)

    def abandon(self) -> None:
        """Touch storage no more."""
        self.is_superseded = True
        self._ended.set()

    def poll(self) -> None:
        """One look at the run folder; what goes wrong is said once."""
        try:
            self._look_at_lease()
            if self.is_superseded or not self._is_ours():
                return
            self._log.upload(log_file(self._resource, self._child))
            if isinstance(self._resource, OfflineTraining):
                found = checkpoint_status(run_folder(self._resource).child(CHECKPOINTS_FOLDER))
                if found is not None:
                    self._reporting.checkpoint(found)
        except UserError as error:
            if str(error) != self._complained:
                self._complained = str(error)
                print(f"the run folder could not be updated; will retry: {error}")

    def _run(self) -> None:
        while not self._ended.wait(POLL_INTERVAL_SECONDS):
            self.poll()
        if not self.is_superseded:
            self.poll()
        self._last_look.set()

    def _look_at_lease(self) -> None:
        found = lease_holder(state_folder(self._resource))
        is_mine = found is not None and found["child"] == self._child
        self.is_superseded = self.is_superseded or (self._had_lease and not is_mine)
        self._had_lease = self._had_lease or is_mine

    def _is_ours(self) -> bool:
        """Whether a log may be written to the folder: not among files of another run or of the user."""
        state = state_folder(self._resource)
        if is_claimed_by_another(state, self._resource):
            return False
        if isinstance(self._resource, OfflineTraining):
            return True
        return not has_foreign_files(resolve(self._resource.spec.output.path), state)


def checkpoint_status(folder: Location) -> CheckpointStatus | None:
    """The latest and the best checkpoint in a folder of checkpoints; None if there is none.

    Raises:
        UserError: storage failed, or a checkpoint vanished meanwhile.
    """
    names = sorted(entry.relative_path for entry in folder.list() if FOLDER_NAME.match(entry.relative_path))
    complete = [name for name in names if folder.child(name, RECORD_FILE).exists()]
    if not complete:
        return None
    latest = folder.child(max(complete, key=lambda name: (len(name), name)))
    record = parse(latest.child(RECORD_FILE), CheckpointRecord)
    saved = latest.child(RECORD_FILE).info().mtime
    file = folder.child(BEST_FILE)
    best = parse(file, Best) if file.exists() else None
    played = best is not None and best.by == EPISODE_RETURN_MEAN
    return CheckpointStatus(
        path=str(latest),
        iteration=record.training.iteration,
        save_time=None if saved is None else saved.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        best_path=str(folder.child(folder_name(best.updates))) if best else None,
        best_episode_return_mean=best.score if best and played else None,
        best_estimated_return=best.score if best and not played else None,
    )
