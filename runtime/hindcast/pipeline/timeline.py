"""A record of when the threads of each stage were busy, for the report's picture of one iteration."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

NUM_BINS = 60
_MAX_SPANS = 20_000


class Timeline:
    """Spans of time by stage, recorded by any number of threads; spans after the first 20,000 are dropped."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._spans: list[tuple[str, float, float]] = []

    def add(self, stages: Mapping[str, float]) -> None:
        """Add spans that followed each other and end now.

        Args:
            stages: stage -> seconds, in order.
        """
        end = time.perf_counter()
        for stage, seconds in reversed(list(stages.items())):
            if len(self._spans) < _MAX_SPANS:
                self._spans.append((stage, end - seconds, end))
            end -= seconds

    def busy_threads(self) -> dict[str, list[float]]:
        """Return stage -> mean number of busy threads in each of 60 equal parts of the time since construction.

        The key "seconds" has the length of that time.
        """
        end = time.perf_counter()
        edges = np.linspace(self._start, end, NUM_BINS + 1)
        width = max(edges[1] - edges[0], 1e-9)
        busy = {}
        for stage in dict.fromkeys(stage for stage, _, _ in self._spans):
            starts, ends = np.array([span[1:] for span in self._spans if span[0] == stage]).T
            elapsed = np.clip(np.minimum(edges[:, None], ends) - starts, 0, None).sum(axis=1)
            busy[stage] = (np.diff(elapsed) / width).round(3).tolist()
        return busy | {"seconds": [end - self._start]}
