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
_OBJECTS_FOLDER = "results"
_TENSORBOARD_FOLDER = "tensorboard"
_MAX_CHUNKS: Final = 256
"""Maximum number of chunks in one object of an `AppendedFile`."""
ITERATION = "training_iteration"

Result = dict[str, Any]


def read_results(folder: Location) -> list[Result]:
    """Return all results in a run folder, oldest first; empty if there are none.

    A last line that a killed process left incomplete is ignored.
    """
    file = folder.child(RESULTS_FILE)
    lines: list[bytes] = []
    # On an object store, the next object is named by the number of lines before it.
    while file.exists():
        lines += file.read_bytes().split(b"\n")[:-1]
        file = _results_object(folder, len(lines))
    return [orjson.loads(line) for line in lines if line]


class ResultsLog:
    """A log that appends results to a run folder.

    On an object store, the log consists of several objects, `results/<number of lines before it>.jsonl`, which are
    joined when the log is closed or opened again.

    Args:
        folder: the run folder.
        resume_at: iteration after which the run continues; later results are removed from the folder when the log is
            opened, since the run will repeat them.

    Attributes:
        results: all results of the run, oldest first.
    """

    def __init__(self, folder: Location, resume_at: int) -> None:
        self._folder = folder
        self._file = folder.child(RESULTS_FILE)
        earlier_results = [result for result in read_results(folder) if result[ITERATION] <= resume_at]
        # An evaluation after the last iteration has its own line, without `learners`. It is dropped, because the run
        # will repeat it.
        self.results = [result for result in earlier_results if "learners" in result]
        self._join()
        num_kept = len(self.results)
        self._line_file = AppendedFile(
            lambda chunk: self._file if self._file.is_local else _results_object(folder, num_kept + chunk)
        )
        self._tensorboard = TensorBoardWriter(folder, purge_from=resume_at + 1)

    def append(self, result: Result) -> None:
        """Add one iteration's result; it is stored when this returns.

        Raises:
            StorageError: with path and reason.
        """
        self.results.append(result)
        self._line_file.append(_encode_line(result))
        self._tensorboard.write(result[ITERATION], dict(flatten_numbers(result)))

    def close(self) -> None:
        """Join the objects into one, if the folder is on an object store."""
        if not self._file.is_local:
            self._join()

    def _join(self) -> None:
        """Write all results as one file, and delete the objects of an object store."""
        self._file.write_bytes(b"".join(map(_encode_line, self.results)))
        self._folder.child(_OBJECTS_FOLDER).delete()


def _results_object(folder: Location, lines_before: int) -> Location:
    """Return the location of the object of a log that begins after this number of lines."""
    return folder.child(_OBJECTS_FOLDER, f"{lines_before:09d}.jsonl")


def flatten_numbers(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a nested result as `("learners/default_policy/total_loss", 0.5)`, without booleans."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from flatten_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


def _encode_line(result: Result) -> bytes:
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"


class TensorBoardWriter:
    """A writer of scalars over iterations into `<folder>/tensorboard`.

    It writes immediately, without a thread, so that `write` raises the errors of storage.

    Args:
        folder: the run folder.
        purge_from: first iteration to be written; TensorBoard hides the values of this and later iterations that an
            earlier process wrote.
    """

    def __init__(self, folder: Location, purge_from: int) -> None:
        self._folder = folder.child(_TENSORBOARD_FOLDER)
        self._purge_from = purge_from
        self._file: AppendedFile | None = None

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Add the scalars of one iteration; they are stored when this returns.

        Raises:
            StorageError: with path and reason.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._file is None:
            self._file = self._start_file()
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._file.append(_encode_event(Event(step=iteration, summary=Summary(value=values))))

    def _start_file(self) -> AppendedFile:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        if self._folder.is_local:
            self._folder.mkdirs()
        timestamp = f"{time.time_ns() // 1000:017d}"
        name = f"events.out.tfevents.{timestamp}.{platform.node()}.{os.getpid()}"
        file = AppendedFile(
            lambda chunk: self._folder.child(f"{name}.{chunk:09d}"),
            head=_encode_event(Event(file_version="brain.Event:2")),
        )
        session = SessionLog(status=SessionLog.START)
        file.append(_encode_event(Event(step=self._purge_from, session_log=session)))
        return file


def _encode_event(event: Any) -> bytes:
    """Return the record of an event, after setting the event's time to now."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    event.wall_time = time.time()
    record = io.BytesIO()
    RecordWriter(record).write(event.SerializeToString())
    return record.getvalue()


class AppendedFile:
    """A file that grows by chunks: a local file, or on an object store several objects of at most 256 chunks each.

    An object is rewritten with each new chunk; the limit keeps the number of bytes written proportional to the number
    of chunks.

    Args:
        object_of_chunk: given the index of a chunk, returns the location of the object that begins with this chunk; on
            a local file system, where only 0 is passed, the location of the file.
        head: bytes before the first chunk of this process and, on an object store, at the beginning of each object.
    """

    def __init__(self, object_of_chunk: Callable[[int], Location], head: bytes = b"") -> None:
        self._object_of_chunk = object_of_chunk
        self._head = head
        self._num_chunks = 0
        self._content = b""

    def append(self, chunk: bytes) -> None:
        """Add a chunk; it is stored when this returns.

        Raises:
            StorageError: with path and reason.
        """
        file = self._object_of_chunk(0)
        chunk_index, self._num_chunks = self._num_chunks, self._num_chunks + 1
        if file.is_local:
            file.append_bytes(chunk if chunk_index else self._head + chunk)
            return
        index_in_object = chunk_index % _MAX_CHUNKS
        self._content = (self._content if index_in_object else self._head) + chunk
        self._object_of_chunk(chunk_index - index_in_object).write_bytes(self._content)
