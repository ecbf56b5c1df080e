"""The results of a run: one JSON line per iteration, and the same numbers for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from hindcast.report.growing_file import GrowingFile
from hindcast.report.tensorboard import TensorBoard
from hindcast.storage.location import Location

RESULTS_FILE = "results.jsonl"
_PARTS = "results"
ITERATION = "training_iteration"

Result = dict[str, Any]


def read_results(folder: Location) -> list[Result]:
    """All results in a run folder, oldest first; none where there are none.

    A last line that a killed process left half-written is not counted.
    """
    file = folder.child(RESULTS_FILE)
    lines: list[bytes] = []
    while file.exists():
        lines += file.read_bytes().split(b"\n")[:-1]
        file = _part(folder, len(lines))
    return [orjson.loads(line) for line in lines if line]


class ResultsLog:
    """Appends results to a run folder.

    On an object store they are in parts, `results/<lines before it>.jsonl`, until they are joined: when the log is
    closed, or opened again.

    Args:
        folder: the run folder.
        resume_at: iteration that the run continues after; later results are dropped, they will come again.
    """

    def __init__(self, folder: Location, resume_at: int) -> None:
        self._folder = folder
        self._file = folder.child(RESULTS_FILE)
        self.results = [result for result in read_results(folder) if _stays(result, resume_at)]
        self._join()
        kept = len(self.results)
        self._lines = GrowingFile(
            lambda line: self._file if self._file.is_local else _part(folder, kept + line)
        )
        self._boards = TensorBoard(folder, purge_from=resume_at + 1)

    def append(self, result: Result) -> None:
        """Add one iteration's result; it is there when this returns.

        Raises:
            StorageError: with path and reason.
        """
        self.results.append(result)
        self._lines.append(_line(result))
        self._boards.write(result[ITERATION], dict(flatten(result)))

    def close(self) -> None:
        """Put all lines into one file."""
        if not self._file.is_local:
            self._join()

    def _join(self) -> None:
        self._file.write_bytes(b"".join(map(_line, self.results)))
        self._folder.child(_PARTS).delete()


def _part(folder: Location, lines_before: int) -> Location:
    return folder.child(_PARTS, f"{lines_before:09d}.jsonl")


def _stays(result: Result, resume_at: int) -> bool:
    """Results up to the iteration stay; a last evaluation, which has a separate line, will be repeated."""
    return result[ITERATION] <= resume_at and "learners" in result


def flatten(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a nested result with their paths."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


def _line(result: Result) -> bytes:
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
