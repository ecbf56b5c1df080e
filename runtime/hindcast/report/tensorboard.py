"""Scalars for TensorBoard, written at once and without a thread, so that what storage refuses is said here."""

from __future__ import annotations

import io
import os
import platform
import time
from collections.abc import Mapping
from typing import Any

from hindcast.report.growing_file import GrowingFile
from hindcast.storage.location import Location

FOLDER = "tensorboard"


class TensorBoard:
    """Writes scalars over iterations into `<folder>/tensorboard`.

    Args:
        folder: the run folder.
        purge_from: first iteration that comes again: TensorBoard hides what an earlier process wrote of it.
    """

    def __init__(self, folder: Location, purge_from: int) -> None:
        self._folder = folder.child(FOLDER)
        self._purge_from = purge_from
        self._file: GrowingFile | None = None

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Add one iteration.

        Raises:
            StorageError: with path and reason.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._file is None:
            self._file = self._begun()
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._file.append(_record(Event(step=iteration, summary=Summary(value=values))))

    def _begun(self) -> GrowingFile:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        if self._folder.is_local:
            self._folder.mkdirs()
        moment = f"{time.time_ns() // 1000:017d}"
        name = f"events.out.tfevents.{moment}.{platform.node()}.{os.getpid()}"
        file = GrowingFile(
            lambda piece: self._folder.child(f"{name}.{piece:09d}"),
            head=_record(Event(file_version="brain.Event:2")),
        )
        session = SessionLog(status=SessionLog.START)
        file.append(_record(Event(step=self._purge_from, session_log=session)))
        return file


def _record(event: Any) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    event.wall_time = time.time()
    record = io.BytesIO()
    RecordWriter(record).write(event.SerializeToString())
    return record.getvalue()
