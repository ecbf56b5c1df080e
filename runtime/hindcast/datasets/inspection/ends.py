"""What is kept of episodes while a dataset is read: their ids, how they end, and what is wrong with that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.inspection.problems import Kind, Problem, Severity
from hindcast.datasets.units import Unit
from hindcast.datasets.validate import Where
from hindcast.episodes.block import Block

_First = tuple[str, int, str]  # file, row, episode


class Ends:
    """Ids, lengths, flags and beginnings of episodes, one block at a time."""

    def __init__(self) -> None:
        self.episodes = self.terminated = self.truncated = 0
        self._counts: Counter[Kind] = Counter()
        self._firsts: dict[Kind, _First] = {}
        self._ids: list[pa.Array] = []
        self._units: list[tuple[Unit, int]] = []

    def add(self, unit: Unit, block: Block, where: Where) -> None:
        """The next unit's episodes."""
        self.episodes += block.num_episodes
        self.terminated += int(block.terminated.sum())
        self.truncated += int(block.truncated.sum())
        self._ids.append(pa.array(block.eps_id, pa.large_string()))
        self._units.append((unit, self.episodes))
        kinds: dict[Kind, NDArray[np.bool_]] = {
            "ended-twice": block.terminated & block.truncated,
            "unfinished": ~block.terminated & ~block.truncated,
            "empty-episode": block.length == 0,
            "no-beginning": block.t_started > 0,
        }
        for kind, mask in kinds.items():
            if not mask.any():
                continue
            self._counts[kind] += int(mask.sum())
            if kind not in self._firsts:
                episode = int(np.argmax(mask))
                self._firsts[kind] = (*where(episode), str(block.eps_id[episode]))

    def repeated(self) -> tuple[int, tuple[Unit, int] | None]:
        """How many ids occur more than once; and unit and episode in it at which one does for the second time."""
        ids = pa.chunked_array(self._ids, pa.large_string())
        counts = pc.value_counts(ids) if len(ids) else pa.array([])
        twice = list(np.flatnonzero(counts.field("counts").to_numpy() > 1)) if len(ids) else []
        if not twice:
            return 0, None
        value = counts.field("values")[int(twice[0])]
        second = int(np.flatnonzero(pc.equal(ids, value).to_numpy())[1])
        starts = 0
        for unit, stop in self._units:
            if second < stop:
                return len(twice), (unit, second - starts)
            starts = stop
        return len(twice), None

    def problems(self) -> Iterator[Problem]:
        """What is wrong with how episodes begin and end; not with their ids."""
        sentences: tuple[tuple[Kind, Severity, str], ...] = (
            ("empty-episode", "warning", "no timesteps"),
            (
                "ended-twice",
                "warning",
                "both a terminal state and a cut: they count as terminated",
            ),
            ("no-beginning", "warning", "no beginning: they start after t = 0"),
            ("unfinished", "info", "neither a terminal state nor a cut at their end: they count as cut off"),
        )
        for kind, severity, what in sentences:
            if not self._counts[kind]:
                continue
            path, row, eps_id = self._firsts[kind]
            count = f"{formatting.whole(self._counts[kind])} of {formatting.plural(self.episodes, 'episode')}"
            has = "has" if self._counts[kind] == 1 else "have"
            message = f"{count} {has} {what} (first: {eps_id}, {path}, row {row})"
            yield Problem(severity=severity, kind=kind, message=message, path=path, row=row)
