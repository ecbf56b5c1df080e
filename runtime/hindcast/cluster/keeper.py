"""The driver's storage work, in a separate thread: storage may hang, the heartbeat must not."""

from __future__ import annotations

import threading
from datetime import UTC
from typing import Final

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Attempt
from hindcast.api.status import CheckpointStatus
from hindcast.cluster.lease import holder
from hindcast.cluster.log import DriverLog
from hindcast.cluster.reporting import Reporting
from hindcast.errors import UserError
from hindcast.learn.checkpoint_record import (
    BEST,
    FOLDER_NAME,
    RECORD,
    Best,
    CheckpointRecord,
    folder_name,
    parse,
)
from hindcast.names import EPISODE_RETURN_MEAN
from hindcast.run.claim import (
    CHECKPOINTS_FOLDER,
    carries_another,
    has_other_files,
    log_file,
    run_folder,
    state_folder,
)
from hindcast.storage.location import Location, resolve

LOOK_EVERY_S: Final = 15.0


class Keeper:
    """Keeps the log in the run folder, and sees there what others did: checkpoints, a later attempt.

    Attributes:
        superseded: a later attempt has begun in the run folder.
    """

    def __init__(
        self,
        resource: OfflineRecording | OfflineTraining,
        attempt: Attempt,
        log: DriverLog,
        reporting: Reporting,
    ) -> None:
        self.superseded = False
        self._resource = resource
        self._child = attempt.child
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
        self.superseded = True
        self._ended.set()

    def look(self) -> None:
        """One look at the run folder; what goes wrong is said once."""
        try:
            self._look_at_lease()
            if self.superseded or not self._is_ours():
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
        while not self._ended.wait(LOOK_EVERY_S):
            self.look()
        if not self.superseded:
            self.look()
        self._last_look.set()

    def _look_at_lease(self) -> None:
        found = holder(state_folder(self._resource))
        is_mine = found is not None and found["child"] == self._child
        self.superseded = self.superseded or (self._had_lease and not is_mine)
        self._had_lease = self._had_lease or is_mine

    def _is_ours(self) -> bool:
        """Whether a log may be written to the folder: not among files of another run or of the user."""
        state = state_folder(self._resource)
        if carries_another(state, self._resource):
            return False
        if isinstance(self._resource, OfflineTraining):
            return True
        return not has_other_files(resolve(self._resource.spec.output.path), state)


def checkpoint_status(folder: Location) -> CheckpointStatus | None:
    """The latest and the best checkpoint in a folder of checkpoints; None if there is none.

    Raises:
        UserError: storage failed, or a checkpoint vanished meanwhile.
    """
    names = sorted(entry.relative for entry in folder.list() if FOLDER_NAME.match(entry.relative))
    complete = [name for name in names if folder.child(name, RECORD).exists()]
    if not complete:
        return None
    latest = folder.child(max(complete, key=lambda name: (len(name), name)))
    record = parse(latest.child(RECORD), CheckpointRecord)
    saved = latest.child(RECORD).info().mtime
    file = folder.child(BEST)
    best = parse(file, Best) if file.exists() else None
    played = best is not None and best.by == EPISODE_RETURN_MEAN
    return CheckpointStatus(
        path=str(latest),
        iteration=record.training.iteration,
        saved=None if saved is None else saved.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        best=str(folder.child(folder_name(best.updates))) if best else None,
        best_episode_return_mean=best.score if best and played else None,
        best_estimated_return=best.score if best and not played else None,
    )
