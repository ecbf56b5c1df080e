"""What a training's checkpoints are, for the report: from their JSON alone, without torch."""

from __future__ import annotations

from datetime import UTC

from hindcast.api.status import CheckpointStatus
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
from hindcast.storage.location import Location


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
