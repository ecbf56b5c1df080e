"""The results of a run: one JSON line per iteration, and the same figures for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

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
        self._boards = _TensorBoard(folder, purge_from=resume_at + 1)

    def append(self, result: Result) -> None:
        """Add one iteration's result."""
        self.results.append(result)
        if self._file.is_local:
            with Path(self._file.path).open("ab") as file:
                file.write(_line(result))
        self._boards.write(result)

    def close(self) -> None:
        """Put everything where it belongs."""
        if not self._file.is_local:
            self._file.write_bytes(b"".join(map(_line, self.results)))
        self._boards.close()


def _stays(result: Result, resume_at: int) -> bool:
    """Results up to the iteration stay; a last evaluation, which has a line of its own, will come again."""
    return result[ITERATION] <= resume_at and "learners" in result


class _TensorBoard:
    """Scalars by path (`evaluation/env_runners/episode_return_mean`) over iterations; local folders only."""

    def __init__(self, folder: Location, purge_from: int) -> None:
        self._folder = folder
        self._purge_from = purge_from
        self._writer: Any = None

    def write(self, result: Result) -> None:
        if not self._folder.is_local:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(
                str(Path(self._folder.path) / "tensorboard"), purge_step=self._purge_from
            )
        for name, value in flatten(result):
            self._writer.add_scalar(name, value, result[ITERATION])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def flatten(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a nested result with their paths."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


def _line(result: Result) -> bytes:
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
