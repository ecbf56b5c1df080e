"""Episodes that the data hold whole: nothing is put in order, and only their ends are looked at."""

from __future__ import annotations

import numpy as np

from hindcast.datasets.assembly.findings import Finding, Findings
from hindcast.datasets.assembly.rules import Rules
from hindcast.episodes.block import I64, Block
from hindcast.errors import DataError


def refuse_unfinished(block: Block, rules: Rules, path: str) -> None:
    """Make sure that all episodes are finished, where the rules want that.

    Raises:
        DataError: one that is not, with its file.
    """
    unfinished = _unfinished(block, rules)
    if rules.spec.unfinished == "Refuse" and len(unfinished):
        raise DataError(
            f"{path}: episode {block.eps_id[unfinished[0]]} ends neither terminated nor truncated, and "
            "prepare.unfinished is Refuse"
        )


def keep_wholes(block: Block, rules: Rules) -> tuple[Block, Findings]:
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
