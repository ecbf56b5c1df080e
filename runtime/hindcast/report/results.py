"""The results of a run: one JSON line per iteration, and the same numbers for TensorBoard."""

from __future__ import annotations

import io
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from hindcast.storage.location import Location

RESULTS_FILE = "results.jsonl"
_PARTS = "results"
_BOARDS = "tensorboard"
_MAX_CHUNKS: Final = 256
ITERATION = "training_iteration"

Result = dict[str, Any]


def read_results(folder: Location) -> list[Result]:
    """Return all results in a run folder, oldest first; empty if there are none.

    A last line that a killed process left incomplete is ignored.
    """
    file = folder.child(RESULTS_FILE)
    lines: list[bytes] = []
    while file.exists():
        lines += file.read_bytes().split(b"\n")[:-1]
        file = _part(folder, len(lines))
    return [orjson.loads(line) for line in lines if line]


class ResultsLog:
    """A log that appends results to a run folder.

    On an object store it consists of parts, `results/<lines before it>.jsonl`, which are joined when the log is closed
    or opened again.

    Args:
        folder: the run folder.
        resume_at: iteration after which the run continues; later results are dropped, since they will be repeated.
    """

    def __init__(self, folder: Location, resume_at: int) -> None:
        self._folder = folder
        self._file = folder.child(RESULTS_FILE)
        earlier_results = [result for result in read_results(folder) if result[ITERATION] <= resume_at]
        # A last evaluation has a separate line, without learners, and will be repeated.
        self.results = [result for result in earlier_results if "learners" in result]
        self._join()
        num_kept = len(self.results)
        self._lines = AppendedFile(
            lambda line: self._file if self._file.is_local else _part(folder, num_kept + line)
        )
        self._boards = TensorBoard(folder, purge_from=resume_at + 1)

    def append(self, result: Result) -> None:
        """Add one iteration's result; it is stored when this returns.

        Raises:
            StorageError: with path and reason.
        """
        self.results.append(result)
        self._lines.append(_line(result))
        self._boards.write(result[ITERATION], dict(flatten(result)))

    def close(self) -> None:
        if not self._file.is_local:
            self._join()

    def _join(self) -> None:
        self._file.write_bytes(b"".join(map(_line, self.results)))
        self._folder.child(_PARTS).delete()


def _part(folder: Location, lines_before: int) -> Location:
    return folder.child(_PARTS, f"{lines_before:09d}.jsonl")


def flatten(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a nested result with their paths."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


def _line(result: Result) -> bytes:
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"


class TensorBoard:
    """A writer of scalars over iterations into `<folder>/tensorboard`.

    It writes immediately, without a thread, so that errors of storage are raised in the call.

    Args:
        folder: the run folder.
        purge_from: first iteration that is repeated: TensorBoard hides what an earlier process wrote of it.
    """

    def __init__(self, folder: Location, purge_from: int) -> None:
        self._folder = folder.child(_BOARDS)
        self._purge_from = purge_from
        self._file: AppendedFile | None = None

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Add one iteration.

        Raises:
            StorageError: with path and reason.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._file is None:
            self._file = self._start_file()
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._file.append(_record(Event(step=iteration, summary=Summary(value=values))))

    def _start_file(self) -> AppendedFile:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        if self._folder.is_local:
            self._folder.mkdirs()
        moment = f"{time.time_ns() // 1000:017d}"
        name = f"events.out.tfevents.{moment}.{platform.node()}.{os.getpid()}"
        file = AppendedFile(
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


class AppendedFile:
    """A file that grows by chunks: a local file, or on an object store several objects of at most 256 chunks each.

    An object is rewritten with each of its chunks; the limit keeps the total written proportional to their number.

    Args:
        name: number of a chunk -> the object that begins with it; a local file is that of chunk 0.
        head: first bytes of the file, and of each object.
    """

    def __init__(self, name: Callable[[int], Location], head: bytes = b"") -> None:
        self._name = name
        self._head = head
        self._num_chunks = 0
        self._content = b""

    def append(self, chunk: bytes) -> None:
        """Add a chunk; it is stored when this returns.

        Raises:
            StorageError: with path and reason.
        """
        file = self._name(0)
        number, self._num_chunks = self._num_chunks, self._num_chunks + 1
        if file.is_local:
            file.append_bytes(chunk if number else self._head + chunk)
            return
        num_earlier = number % _MAX_CHUNKS
        self._content = (self._content if num_earlier else self._head) + chunk
        self._name(number - num_earlier).write_bytes(self._content)
