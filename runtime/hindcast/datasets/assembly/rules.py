"""The rules by which rows become episodes, and what breaking them is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hindcast.api.input import PrepareSpec
from hindcast.datasets.assembly.findings import Finding
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import I64, Bool
from hindcast.errors import DataError


@dataclass(frozen=True)
class Rules:
    """How rows become episodes. It travels to workers.

    Attributes:
        spec: the input's section.
        paths: of each piece, its file.
        is_filtered: rows were left out, so that some may be missing.
        zero_final: the observation after an episode's last row, where it is missing, is zeros.
        is_grouped: rows say which episode they belong to, and are brought together by it. Otherwise episodes
            follow each other in stored order.
    """

    spec: PrepareSpec
    paths: Sequence[str]
    is_filtered: bool = False
    zero_final: bool = False
    is_grouped: bool = True

    @property
    def splits(self) -> bool:
        """Whether an episode of which rows are missing is cut."""
        return self.is_filtered or self.spec.gaps == "Split"

    def finding(self, steps: Steps, where: Bool | I64) -> Finding:
        """A finding at rows of `steps`: all that are named count, and the first is told."""
        rows = np.flatnonzero(where) if where.dtype == np.bool_ else where
        first = int(rows[0])
        return Finding(
            count=len(rows),
            path=self.paths[int(steps.piece[first])],
            row=int(steps.row[first]),
            eps_id=str(steps.names[steps.episode[first]]),
            t=None if steps.t is None else int(steps.t[first]),
        )

    def refuse(self, steps: Steps, row: int, message: str) -> DataError:
        """The error at one of the rows."""
        return DataError(f"{self.finding(steps, np.array([row]))}: {message}")
