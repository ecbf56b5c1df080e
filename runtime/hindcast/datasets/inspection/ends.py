"""What is kept of episodes while a dataset is read: their ids, how they end, and what is wrong with that."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.inspection.summary import Kind, Problem, Severity
from hindcast.datasets.validate import Where
from hindcast.episodes.block import Block

_SENTENCES: Final[tuple[tuple[Kind, Severity, str], ...]] = (
    ("empty-episode", "warning", "no timesteps"),
    ("ended-twice", "warning", "both a terminal state and a cut: they count as terminated"),
    ("no-beginning", "warning", "no beginning: they start after t = 0"),
    ("unfinished", "info", "neither a terminal state nor a cut at their end: they count as cut off"),
)

_First = tuple[str, int, str]  # file, row, episode


class Ends:
    """Ids, lengths, flags and beginnings of episodes, one block at a time."""

    def __init__(self) -> None:
        self.episodes = self.terminated = self.truncated = 0
        self._counts: Counter[Kind] = Counter()
        self._firsts: dict[Kind, _First] = {}
        self._ids: list[pa.Array] = []
        self._blocks: list[tuple[int, Where]] = []  # episodes up to each block's first

    def add(self, block: Block, where: Where) -> None:
        """The next block's episodes."""
        self._ids.append(pa.array(block.eps_id, pa.large_string()))
        self._blocks.append((self.episodes, where))
        self.episodes += block.num_episodes
        self.terminated += int(block.terminated.sum())
        self.truncated += int(block.truncated.sum())
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

    def problems(self) -> Iterator[Problem]:
        """What is wrong with how episodes begin and end, and with their ids."""
        for kind, severity, what in _SENTENCES:
            if not self._counts[kind]:
                continue
            path, row, eps_id = self._firsts[kind]
            count = f"{formatting.whole(self._counts[kind])} of {formatting.plural(self.episodes, 'episode')}"
            has = "has" if self._counts[kind] == 1 else "have"
            message = f"{count} {has} {what} (first: {eps_id}, {path}, row {row})"
            yield Problem(severity=severity, kind=kind, message=message, path=path, row=row)
        yield from self._repeated()

    def _repeated(self) -> Iterator[Problem]:
        ids = pa.chunked_array(self._ids, pa.large_string())
        counts = ids.value_counts()
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        if not len(twice):
            return
        second = int(np.flatnonzero(pc.equal(ids, twice[0]).to_numpy())[1])
        first, where = self._blocks[bisect_right(self._blocks, second, key=itemgetter(0)) - 1]
        path, row = where(second - first)
        occur = "episode id occurs" if len(twice) == 1 else "episode ids occur"
        message = (
            f"{formatting.whole(len(twice))} {occur} more than once: episodes may be stored twice "
            f"(first: {twice[0]}, again in {path}, row {row})"
        )
        yield Problem(severity="warning", kind="repeated-id", message=message, path=path, row=row)
