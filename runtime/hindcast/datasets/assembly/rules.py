"""The rules by which rows become episodes, the errors for breaking them, and what is reported of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from hindcast import formatting
from hindcast.api.input import PrepareSpec
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import I64, Block, Bool
from hindcast.errors import DataError
from hindcast.formats.entries import JsonModel

Kind = Literal[
    "gaps",
    "duplicates",
    "repeated",
    "unfinished",
    "late",
    "restarts",
    "unlike",
    "dropped",
    "zeros",
    "cut_off",
]
_ORDERS: Final = {
    "time": "by t",
    "stored": "as stored",
    "chain": "by chaining new_obs to obs",
}
_SENTENCES: Final[dict[Kind, tuple[str, str]]] = {
    "gaps": (
        "timesteps are missing in 1 place, where an episode was cut",
        "timesteps are missing in {} places, where episodes were cut",
    ),
    "duplicates": ("1 row repeats another, and counts once", "{} rows repeat others, and count once"),
    "repeated": (
        "1 stored episode repeats another (the same id and the same content), and counts once",
        "{} stored episodes repeat others (the same id and the same content), and count once",
    ),
    "unfinished": (
        "1 episode ends neither terminated nor truncated",
        "{} episodes end neither terminated nor truncated",
    ),
    "late": ("1 episode begins after timestep 0", "{} episodes begin after timestep 0"),
    "restarts": (
        "an episode continues after its end, and was cut there",
        "{} times an episode continues after its end, and was cut there",
    ),
    "unlike": (
        "in 1 row new_obs is not the next row's obs, which counts",
        "in {} rows new_obs is not the next row's obs, which counts",
    ),
    "dropped": ("1 row of an unfinished episode was dropped", "{} rows of unfinished episodes were dropped"),
    "zeros": (
        "the final observation of 1 episode is zeros, since there is no new_obs",
        "the final observations of {} episodes are zeros, since there is no new_obs",
    ),
    "cut_off": (
        "1 last step was left out, since there is no new_obs and its episode did not terminate",
        "{} last steps were left out, since there is no new_obs and their episodes did not terminate",
    ),
}
"""What is said of one, and of several."""


class Finding(JsonModel):
    """Something that was found.

    Attributes:
        count: how often.
        path: the file in which it was first; None for episodes that the data store as such.
        row: of that file, likewise.
        eps_id: the episode.
        t: timestep, where the data say it.
    """

    count: int
    path: str | None = None
    row: int | None = None
    eps_id: str
    t: int | None = None

    def __str__(self) -> str:
        if self.path is None:
            return f"episode {self.eps_id}"
        when = "" if self.t is None else f", t {self.t}"
        return f"{self.path}: row {self.row} (episode {self.eps_id}{when})"


class Findings(JsonModel):
    """What was made of rows.

    Attributes:
        rows: read.
        episodes: made, pieces of one counted each.
        timesteps: in them.
        orders: how many episodes were put in order by what: "time", "stored", "chain"; stored episodes
            are not counted.
        found: what a user should know.
    """

    rows: int = 0
    episodes: int = 0
    timesteps: int = 0
    orders: dict[str, int] = {}
    found: dict[Kind, Finding] = {}

    @classmethod
    def merge(cls, parts: Sequence[Findings]) -> Findings:
        """Of all parts together; the first place is that of the first part."""
        orders: Counter[str] = Counter()
        findings_by_kind: dict[Kind, Finding] = {}
        for part in parts:
            orders.update(part.orders)
            for kind, finding in part.found.items():
                earlier = findings_by_kind.get(kind)
                total = finding.count + (earlier.count if earlier else 0)
                findings_by_kind[kind] = (earlier or finding).model_copy(update={"count": total})
        return cls(
            rows=sum(part.rows for part in parts),
            episodes=sum(part.episodes for part in parts),
            timesteps=sum(part.timesteps for part in parts),
            orders=dict(orders),
            found=findings_by_kind,
        )

    def sentences(self) -> tuple[str, ...]:
        """What a user should know."""
        orders = ", ".join(
            f"{formatting.integer(self.orders[name])} {how}"
            for name, how in _ORDERS.items()
            if self.orders.get(name)
        )
        first = (
            f"prepared {formatting.plural(self.rows, 'row')} into {formatting.plural(self.episodes, 'episode')} of "
            f"{formatting.plural(self.timesteps, 'timestep')}"
            + (f"; rows were put in order: {orders}" if orders else "")
        )
        return (first, *(_sentence(kind, self.found[kind]) for kind in _SENTENCES if kind in self.found))


def _sentence(kind: Kind, finding: Finding) -> str:
    singular, plural = _SENTENCES[kind]
    if finding.count == 1:
        return f"{singular}: {finding}"
    return f"{plural.format(formatting.integer(finding.count))}; the first: {finding}"


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
    should_zero_final_obs: bool = False
    is_grouped: bool = True

    @property
    def should_split_gaps(self) -> bool:
        """Whether an episode with missing rows is cut."""
        return self.is_filtered or self.spec.gaps == "Split"

    @property
    def can_lack_final_obs(self) -> bool:
        """Whether the observation after an episode's last row may be missing."""
        return self.should_zero_final_obs or self.spec.cut_off_steps == "Drop"

    @property
    def should_join_gaps(self) -> bool:
        """Whether the rows of an episode that follow each other are consecutive timesteps, whatever `t` counts."""
        return self.spec.gaps == "Join" and not self.is_filtered

    def finding(self, steps: Steps, where: Bool | I64) -> Finding:
        """A finding at rows of `steps`: all of them count, and the first is reported."""
        rows = np.flatnonzero(where) if where.dtype == np.bool_ else where
        first = int(rows[0])
        return Finding(
            count=len(rows),
            path=self.paths[int(steps.piece[first])],
            row=int(steps.row[first]),
            eps_id=str(steps.episode_ids[steps.episode[first]]),
            t=int(steps.t[first]) if steps.t is not None and steps.has_step_index else None,
        )

    def row_error(self, steps: Steps, row: int, message: str) -> DataError:
        """The error at one of the rows."""
        return DataError(f"{self.finding(steps, np.array([row]))}: {message}")

    def input_error(self, steps: Steps, message: str) -> DataError:
        """The error of all rows, such as that a column is missing."""
        return DataError(f"{self.paths[int(steps.piece[0])]}: {message}")


def refuse_unfinished(block: Block, rules: Rules, path: str) -> None:
    """Make sure that all episodes are finished, if the rules require it.

    Raises:
        DataError: one that is not, with its file.
    """
    unfinished_episodes = _find_unfinished(block, rules)
    if rules.spec.unfinished == "Refuse" and len(unfinished_episodes):
        raise DataError(
            f"{path}: episode {block.eps_id[unfinished_episodes[0]]} ends neither terminated nor truncated, and "
            "prepare.unfinished is Refuse"
        )


def keep_whole_episodes(block: Block, rules: Rules) -> tuple[Block, Findings]:
    """The episodes that the rules keep, and what was found."""
    unfinished_episodes = _find_unfinished(block, rules)
    remaining_block, findings_by_kind = block, dict[Kind, Finding]()
    if len(unfinished_episodes):
        first = str(block.eps_id[unfinished_episodes[0]])
        if rules.spec.unfinished == "Keep":
            findings_by_kind["unfinished"] = Finding(count=len(unfinished_episodes), eps_id=first)
        else:
            remaining_block = block.take(np.setdiff1d(np.arange(block.num_episodes), unfinished_episodes))
            findings_by_kind["dropped"] = Finding(
                count=block.num_steps - remaining_block.num_steps, eps_id=first
            )
    findings = Findings(
        rows=block.num_steps,
        episodes=remaining_block.num_episodes,
        timesteps=remaining_block.num_steps,
        found=findings_by_kind,
    )
    return remaining_block, findings


def _find_unfinished(block: Block, rules: Rules) -> I64:
    """Episodes that end neither terminated nor truncated; under a filter every cut makes such pieces."""
    if rules.is_filtered:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(~block.terminated & ~block.truncated)
