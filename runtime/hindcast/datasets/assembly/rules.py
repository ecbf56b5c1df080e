"""The rules by which rows become episodes, errors for rows that break them, and findings to report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

import numpy as np
from pydantic import Field

from hindcast import formatting
from hindcast.api.input import PrepareSpec
from hindcast.datasets.assembly.id_scopes import SCOPE_ADVICE
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import I64, Block, Bool
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.formats.entries import JsonModel

FindingKind = Literal[
    "gaps",
    "duplicates",
    "repeated",
    "unfinished",
    "late",
    "restarts",
    "unlike",
    "dropped",
    "no_final_obs",
    "cut_off",
    "vanished",
    "resets",
    "joined",
    "same_obs",
]
_ORDERS: Final = {
    "time": "by t",
    "stored": "as stored",
    "chain": "by chaining new_obs to obs",
}
_SAME_OBS_REMEDY: Final = (
    "leave out the last steps of truncated episodes by a `filter` on their flag, such as `truncated == false` (no "
    "value is bootstrapped from the observation after a terminated step)"
)
_SENTENCES: Final[dict[FindingKind, tuple[str, str]]] = {
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
        "the obs of 1 row differs from the new_obs of the row before it; obs is used",
        "the obs of {} rows differs from the new_obs of the row before each; obs is used",
    ),
    "dropped": ("1 row of an unfinished episode was dropped", "{} rows of unfinished episodes were dropped"),
    "no_final_obs": (
        "1 episode has no observation after its last step (no new_obs); its last observation is repeated",
        "{} episodes have no observation after their last step (no new_obs); their last observation is repeated",
    ),
    "resets": (
        "1 row that only resets (as of Gymnasium's vector environments) was left out",
        "{} rows that only reset (as of Gymnasium's vector environments) were left out",
    ),
    "joined": (
        f"an episode continues in another file in 1 place, and only its id says so; {SCOPE_ADVICE}",
        "episodes continue in another file in {} places, and only their ids say so; " + SCOPE_ADVICE,
    ),
    "same_obs": (
        "1 episode ends with the observation with which the next one begins; unless one longer episode was cut there, "
        f"its last observation was lost in the autoreset of a vector environment: {_SAME_OBS_REMEDY}",
        "{} episodes end with the observation with which the next one begins; unless longer episodes were cut there, "
        f"their last observations were lost in the autoreset of a vector environment: {_SAME_OBS_REMEDY}",
    ),
    "cut_off": (
        "1 last step was left out, since there is no new_obs and its episode did not terminate",
        "{} last steps were left out, since there is no new_obs and their episodes did not terminate",
    ),
    "vanished": (
        "1 episode of a single step was left out with its last step",
        "{} episodes of a single step were left out with their last steps",
    ),
}
"""Kind of finding -> a sentence for one case, and one for several cases."""


_WARNINGS: Final[tuple[FindingKind, ...]] = ("joined", "same_obs")


class Finding(JsonModel):
    """A finding to report, with its first location.

    Attributes:
        count: number of cases: rows, episodes or places, as the sentence of the finding's kind says.
        path: file of the first case; None for data stored as complete episodes.
        row: row in that file; None for data stored as complete episodes.
        eps_id: episode of the first case.
        t: timestep of the first case; None if the data do not count timesteps, or the order does not depend on them.
    """

    count: int
    path: str | None = None
    row: int | None = None
    eps_id: str
    t: int | None = None

    def __str__(self) -> str:
        if self.path is None:
            return f"episode {self.eps_id}"
        time_text = "" if self.t is None else f", t {self.t}"
        return f"{self.path}, row {self.row} (episode {self.eps_id}{time_text})"


class Findings(JsonModel):
    """The result of assembling rows, to report.

    Attributes:
        rows: number of rows read.
        episodes: number of assembled episodes; each fragment counts as one.
        timesteps: number of their timesteps.
        orders: "time", "stored" or "chain" -> number of episodes ordered in this way; data stored as complete episodes
            are not counted.
        by_kind: kind -> finding.
        left_out: name of a column that was left out -> the reason.
        missing: element of the observations, such as `heart_rate` -> its missing values (NaN), counted in rows.
    """

    rows: int = 0
    episodes: int = 0
    timesteps: int = 0
    orders: dict[str, int] = {}
    by_kind: dict[FindingKind, Finding] = Field(default={}, alias="found")  # JSON name in existing caches
    left_out: dict[str, str] = {}
    missing: dict[str, Finding] = {}

    @classmethod
    def merge(cls, items: Sequence[Findings]) -> Findings:
        """Add up the findings in several sets of rows, such as partitions; of each kind, keep the first location."""
        orders: Counter[str] = Counter()
        for findings in items:
            orders.update(findings.orders)
        return cls(
            rows=sum(findings.rows for findings in items),
            episodes=sum(findings.episodes for findings in items),
            timesteps=sum(findings.timesteps for findings in items),
            orders=dict(orders),
            by_kind=_merge_by_key([findings.by_kind for findings in items]),
            missing=_merge_by_key([findings.missing for findings in items]),
            left_out={
                name: reason for findings in reversed(items) for name, reason in findings.left_out.items()
            },
        )

    def sentences(self) -> tuple[str, ...]:
        """Return sentences for the user: on the numbers of rows and episodes, then on each kind of finding."""
        orders = ", ".join(
            f"{formatting.integer(self.orders[name])} {description}"
            for name, description in _ORDERS.items()
            if self.orders.get(name)
        )
        counts = (
            f"prepared {formatting.plural(self.rows, 'row')} into {formatting.plural(self.episodes, 'episode')} of "
            f"{formatting.plural(self.timesteps, 'timestep')}"
            + (f"; rows were put in order: {orders}" if orders else "")
        )
        return (
            counts,
            *(
                _format_finding(kind, self.by_kind[kind])
                for kind in _SENTENCES
                if kind in self.by_kind and kind not in _WARNINGS
            ),
            *(f"the column {name!r} was left out: {reason}" for name, reason in self.left_out.items()),
            *self._missing_sentences(),
        )

    def _missing_sentences(self) -> tuple[str, ...]:
        if not self.missing:
            return ()
        counts = [f"{name} in {formatting.plural(item.count, 'row')}" for name, item in self.missing.items()]
        return (
            f"values are missing: {formatting.first_few(counts, 8)}; prepare.missing says what replaces them",
        )

    def warnings(self) -> tuple[str, ...]:
        """Return sentences on findings that may be mistakes."""
        return tuple(_format_finding(kind, self.by_kind[kind]) for kind in _WARNINGS if kind in self.by_kind)

    @property
    def has_no_ends(self) -> bool:
        """True if no flag or timestep says where the episodes end, and all are in stored order."""
        unfinished = self.by_kind.get("unfinished")
        return unfinished is not None and unfinished.count == self.episodes == self.orders.get("stored")


_Key = TypeVar("_Key", bound=str)


def _merge_by_key(findings_by_key: Sequence[Mapping[_Key, Finding]]) -> dict[_Key, Finding]:
    """Add up the counts of each key, and keep its first location."""
    finding_by_key: dict[_Key, Finding] = {}
    for findings in findings_by_key:
        for key, finding in findings.items():
            earlier = finding_by_key.get(key)
            total = finding.count + (earlier.count if earlier else 0)
            finding_by_key[key] = (earlier or finding).model_copy(update={"count": total})
    return finding_by_key


def _format_finding(kind: FindingKind, finding: Finding) -> str:
    singular, plural = _SENTENCES[kind]
    if finding.count == 1:
        return f"{singular}: {finding}"
    return f"{plural.format(formatting.integer(finding.count))}; first: {finding}"


@dataclass(frozen=True)
class Rules:
    """The rules by which rows become episodes; they are sent to workers.

    Attributes:
        spec: the `prepare` section of the input.
        paths: path of each part's file.
        is_filtered: whether a filter may have dropped rows.
        should_repeat_final_obs: whether the observation of an episode's last row replaces a missing one after it.
        is_grouped: whether rows have episode ids, by which they are grouped. Otherwise rows are in stored order, and
            an episode ends where its flags, `t` or observations say so.
        has_end_flags: whether flags end any episode. This matters for rows without ids, `t` and next observations: if
            True, an episode continues in the next file until a flag ends it; if False, it ends with its file.
        has_reset_rows: whether rows after an episode's end only reset the environment, and are left out.
        names: leaf -> the names of its elements.
        time_unit: the unit of time in the numbers of the times of rows.
        observes_time: whether observations get the time since the previous row.
    """

    spec: PrepareSpec
    paths: Sequence[str]
    is_filtered: bool = False
    should_repeat_final_obs: bool = False
    is_grouped: bool = True
    has_end_flags: bool = True
    has_reset_rows: bool = False
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    time_unit: float = 1.0
    observes_time: bool = False

    @property
    def names_in_episodes(self) -> Mapping[str, tuple[str, ...]]:
        """As `names`, for the leaves of assembled episodes."""
        if not self.observes_time or Columns.OBS not in self.names:
            return self.names
        return {**self.names, Columns.OBS: (*self.names[Columns.OBS], Columns.DELTA_T)}

    @property
    def should_split_gaps(self) -> bool:
        """True if an episode is cut where rows are missing; otherwise such episodes are refused, or joined."""
        return self.is_filtered or self.spec.gaps == "Split"

    @property
    def can_lack_final_obs(self) -> bool:
        """True if the observation after an episode's last row may be missing."""
        return self.should_repeat_final_obs or self.spec.cut_off_steps == "Drop"

    @property
    def should_join_gaps(self) -> bool:
        """True if adjacent rows of an episode are consecutive timesteps, whatever `t` and the observations say."""
        return self.spec.gaps == "Join" and not self.is_filtered

    def make_finding(self, steps: Steps, selection: Bool | I64) -> Finding:
        """Make a finding from a mask or indices of rows, at least one: their number, and the first row's location."""
        rows = np.flatnonzero(selection) if selection.dtype == np.bool_ else selection
        first_row = int(rows[0])
        return Finding(
            count=len(rows),
            path=self.paths[int(steps.part[first_row])],
            row=int(steps.row[first_row]),
            eps_id=str(steps.episode_ids[steps.episode[first_row]]),
            t=int(steps.t[first_row]) if steps.t is not None and steps.has_step_index else None,
        )

    def make_row_error(self, steps: Steps, row: int, message: str) -> DataError:
        """Make an error that names one row."""
        place = self.make_finding(steps, np.array([row]))
        return DataError(message, path=place.path or "", row=place.row, episode=place.eps_id, step=place.t)

    def make_input_error(self, steps: Steps, message: str) -> DataError:
        """Make an error about all rows, such as a missing column; it names the first files."""
        paths = dict.fromkeys(self.paths[part] for part in np.unique(steps.part).tolist())
        return DataError(message, path=formatting.first_few(list(paths), 3))


def refuse_unfinished(block: Block, rules: Rules, path: str) -> None:
    """Refuse unfinished episodes in a block if `prepare.unfinished` is Refuse.

    Raises:
        DataError: an episode is unfinished.
    """
    unfinished_episodes = _find_unfinished(block, rules)
    if rules.spec.unfinished == "Refuse" and len(unfinished_episodes):
        raise DataError(
            f"episode {block.eps_id[unfinished_episodes[0]]} ends neither terminated nor truncated, "
            "but prepare.unfinished is Refuse; set it to Keep or Drop",
            path=path,
        )


def apply_unfinished_rule(block: Block, rules: Rules) -> tuple[Block, Findings]:
    """Apply `prepare.unfinished` to complete episodes, and return the remaining episodes and the findings.

    With Refuse, `refuse_unfinished` must have checked the block before.
    """
    unfinished_episodes = _find_unfinished(block, rules)
    remaining_block, findings_by_kind = block, dict[FindingKind, Finding]()
    if len(unfinished_episodes):
        first_id = str(block.eps_id[unfinished_episodes[0]])
        if rules.spec.unfinished == "Keep":
            findings_by_kind["unfinished"] = Finding(count=len(unfinished_episodes), eps_id=first_id)
        else:
            remaining_block = block.take(np.setdiff1d(np.arange(block.num_episodes), unfinished_episodes))
            findings_by_kind["dropped"] = Finding(
                count=block.num_steps - remaining_block.num_steps, eps_id=first_id
            )
    findings = Findings(
        rows=block.num_steps,
        episodes=remaining_block.num_episodes,
        timesteps=remaining_block.num_steps,
        by_kind=findings_by_kind,
    )
    return remaining_block, findings


def _find_unfinished(block: Block, rules: Rules) -> I64:
    """Return the indices of the episodes that end neither terminated nor truncated; none with a filter."""
    # A filter leaves an unfinished fragment at every gap, so `prepare.unfinished` does not apply.
    if rules.is_filtered:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(~block.terminated & ~block.truncated)
