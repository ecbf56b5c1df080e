"""The rules by which rows become episodes, and the errors for breaking them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hindcast.api.input import PrepareSpec
from hindcast.datasets.assembly.findings import Finding, Findings
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import I64, Block, Bool
from hindcast.errors import DataError


@dataclass(frozen=True)
class Rules:
    """How rows become episodes. It travels to workers.

    Attributes:
        spec: the input's section.
        paths: of each piece, its file.
        is_filtered: rows were left out, so that some may be missing.
        zero_final: the observation after an episode's last row is zeros if it is missing.
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
        """Whether an episode with missing rows is cut."""
        return self.is_filtered or self.spec.gaps == "Split"

    def finding(self, steps: Steps, where: Bool | I64) -> Finding:
        """A finding at rows of `steps`: all of them count, and the first is reported."""
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


def refuse_unfinished(block: Block, rules: Rules, path: str) -> None:
    """Make sure that all episodes are finished, if the rules require it.

    Raises:
        DataError: one that is not, with its file.
    """
    unfinished = _unfinished(block, rules)
    if rules.spec.unfinished == "Refuse" and len(unfinished):
        raise DataError(
            f"{path}: episode {block.eps_id[unfinished[0]]} ends neither terminated nor truncated, and "
            "prepare.unfinished is Refuse"
        )


def keep_whole_episodes(block: Block, rules: Rules) -> tuple[Block, Findings]:
    """The episodes that the rules keep, and what was found."""
    unfinished = _unfinished(block, rules)
    if not len(unfinished):
        return block, _findings(block, block.num_steps)
    first = str(block.eps_id[unfinished[0]])
    if rules.spec.unfinished == "Keep":
        finding = Finding(count=len(unfinished), eps_id=first)
        return block, _findings(block, block.num_steps).model_copy(update={"found": {"unfinished": finding}})
    kept = block.take(np.setdiff1d(np.arange(block.num_episodes), unfinished))
    finding = Finding(count=block.num_steps - kept.num_steps, eps_id=first)
    return kept, _findings(kept, block.num_steps).model_copy(update={"found": {"dropped": finding}})


def _unfinished(block: Block, rules: Rules) -> I64:
    """Episodes that end neither terminated nor truncated; under a filter every cut makes such pieces."""
    if rules.is_filtered:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(~block.terminated & ~block.truncated)


def _findings(block: Block, rows: int) -> Findings:
    return Findings(rows=rows, episodes=block.num_episodes, timesteps=block.num_steps)
