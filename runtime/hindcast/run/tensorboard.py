"""Scalars for TensorBoard, written at once and without a thread, so that what storage refuses is said here."""

from __future__ import annotations

import io
import os
import platform
import time
from collections.abc import Mapping
from typing import Any

from hindcast.store.filesystem import Location

FOLDER = "tensorboard"


class TensorBoard:
    """Writes scalars over iterations into `<folder>/tensorboard`; local folders only.

    Args:
        folder: the run folder.
        purge_from: first iteration that comes again: TensorBoard hides what an earlier process wrote of it.
    """

    def __init__(self, folder: Location, purge_from: int) -> None:
        self._folder = folder.child(FOLDER)
        self._purge_from = purge_from
        self._file: Location | None = None

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Add one iteration.

        Raises:
            StorageError: with path and reason.
        """
        if not self._folder.is_local:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._file is None:
            self._begin()
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._add(Event(step=iteration, summary=Summary(value=values)))

    def _begin(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._folder.mkdirs()
        moment = f"{time.time_ns() // 1000:017d}"
        self._file = self._folder.child(f"events.out.tfevents.{moment}.{platform.node()}.{os.getpid()}")
        self._add(Event(file_version="brain.Event:2"))
        self._add(Event(step=self._purge_from, session_log=SessionLog(status=SessionLog.START)))

    def _add(self, event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._file is not None
        event.wall_time = time.time()
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self._file.append_bytes(record.getvalue())
