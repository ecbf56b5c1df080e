"""The results of a run: one JSON line per iteration, and the same figures for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from hindcast.run.tensorboard import TensorBoard
from hindcast.store.filesystem import Location

RESULTS_FILE = "results.jsonl"
ITERATION = "training_iteration"

Result = dict[str, Any]


def read_results(folder: Location) -> list[Result]:
    """All results in a run folder, oldest first; none where there are none.

    A last line that a killed process left half-written is not counted.
    """
    file = folder.child(RESULTS_FILE)
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")
    return [orjson.loads(line) for line in lines[:-1] if line]


class ResultsLog:
    """Appends results to a run folder.

    Args:
        folder: the run folder.
        resume_at: iteration that the run continues after; later results are dropped, they will come again.
    """

    def __init__(self, folder: Location, resume_at: int) -> None:
        self._folder = folder
        self._file = folder.child(RESULTS_FILE)
        self.results = [result for result in read_results(folder) if _stays(result, resume_at)]
        self._file.write_bytes(b"".join(map(_line, self.results)))
        self._boards = TensorBoard(folder, purge_from=resume_at + 1)

    def append(self, result: Result) -> None:
        """Add one iteration's result; on an object store it is there after `sync`.

        Raises:
            StorageError: with path and reason.
        """
        self.results.append(result)
        if self._file.is_local:
            self._file.append_bytes(_line(result))
        self._boards.write(result[ITERATION], dict(flatten(result)))

    def sync(self) -> None:
        """Put everything where it belongs; to be called before a checkpoint that counts on it."""
        if not self._file.is_local:
            self._file.write_bytes(b"".join(map(_line, self.results)))

    def close(self) -> None:
        """Put everything where it belongs, for good."""
        self.sync()


def _stays(result: Result, resume_at: int) -> bool:
    """Results up to the iteration stay; a last evaluation, which has a line of its own, will come again."""
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
