"""Results of runs in `FOLDER/test/r1`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hindcast.report import results
from hindcast.storage.location import resolve

Result = dict[str, Any]
TIMINGS = {"time_total_s", "timesteps_per_s", "timers"}


def read_results(folder: Path | str) -> list[Result]:
    return results.read_results(resolve(str(folder)).child("test/r1"))


def without_times(lines: Iterable[Result]) -> list[Result]:
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in lines]
