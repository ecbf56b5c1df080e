"""Which rows follow each other: by their timestep, as stored, or by chaining observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from hindcast.datasets.assembly.row_comparison import (
    chained_episodes,
    chains_of,
    follows,
    has_next_obs,
    repeated_runs,
    rows_equal,
)
from hindcast.datasets.assembly.rules import Finding, Kind, Rules
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import I64, Bool

_SPLIT = "set prepare.gaps to Split to make pieces of such episodes"
_UNCOUNTED = ", unless t orders timesteps without counting them (then set prepare.gaps to Join)"
_UNORDERED = (
    "the observation is not the next observation of the episode's row before, and the rows cannot be put in order by "
    "'t' or by their observations"
)
_UNCHAINED = "no row's next observation is this row's, so a timestep before it is missing"


@dataclass(frozen=True, eq=False)
class RowOrder:
    """Rows in order. Shape suffix: K = rows that count.

    Attributes:
        index: `[K]` row of the steps.
        begins: `[K]` whether a piece begins with the row: an episode, or what follows a gap.
        t: `[K]` timestep.
        orders: see `Findings`.
        found: see `Findings`.
    """

    index: I64
    is_start: Bool
    t: I64
    orders: dict[str, int] = field(default_factory=dict)
    findings: dict[Kind, Finding] = field(default_factory=dict)


def order_rows(steps: Steps, rules: Rules) -> RowOrder:
    """The rows of complete episodes, of which there is one at least, from stored order to theirs.

    Raises:
        DataError: rows whose order is in doubt, that are missing, or that contradict each other.
    """
    kind = rules.spec.order
    if kind == "Time" and steps.t is None:
        raise rules.input_error(steps, "the data have no 't', which prepare.order uses; name it by `schema`")
    if steps.t is not None and kind in ("Auto", "Time"):
        return _by_time(steps, rules)
    if kind == "Chain" and not rules.is_grouped:
        raise rules.input_error(steps, "prepare.order is Chain, which takes 'eps_id'; name it by `schema`")
    if rules.is_filtered and not has_next_obs(steps):
        raise rules.input_error(
            steps,
            "there is neither 't' nor 'new_obs', so the order of the rows that pass the filter is unknown; "
            "name one of them by `schema`",
        )
    steps = replace(steps, t=None)
    if kind == "Chain":
        return _chained(steps, rules)
    return _as_stored(steps, rules, chain=kind == "Auto" and rules.is_grouped)


def _by_time(steps: Steps, rules: Rules) -> RowOrder:
    assert steps.t is not None
    index = np.lexsort((steps.t, steps.episode))
    index, found = _distinct(steps, index, rules)
    episode, t, ended = steps.episode[index], steps.t[index], steps.is_end[index]
    same = episode[1:] == episode[:-1]
    if not rules.is_grouped and not rules.should_split_gaps:
        _check_joined(steps, index, same & ~ended[:-1], rules)
    heads = np.append(True, ~same)
    orders = {"time": int(heads.sum())}
    if rules.spec.gaps == "Join" or not steps.has_step_index:
        gap = _unlinked(steps, index, rules) & same & ~ended[:-1]
        order = _cut(steps, rules, index, gap, lambda _: _UNORDERED)
        return replace(order, orders=orders, findings=found | order.findings)
    late = index[heads & (t > 0)]
    if len(late):
        found["late"] = rules.finding(steps, np.sort(late))
    gap = same & (np.diff(t) != 1) & ~ended[:-1]

    def missing(i: int) -> str:
        return f"t is {t[i + 1]} after {t[i]}: timestep {t[i] + 1} is missing{_UNCOUNTED}"

    order = _cut(steps, rules, index, gap, missing, t=t)
    return replace(order, orders=orders, findings=found | order.findings)


def _unlinked(steps: Steps, index: I64, rules: Rules) -> Bool:
    """`[K - 1]` pairs of rows between which a filter left some out, although `t` does not say so."""
    if not rules.is_filtered:
        return np.zeros(len(index) - 1, dtype=np.bool_)
    if not has_next_obs(steps):
        raise rules.input_error(
            steps,
            "'t' does not count timesteps and there is no 'new_obs', so which rows that pass the filter follow each "
            "other is unknown; name the next observation by `schema`, or leave out the filter",
        )
    return ~follows(steps, index[:-1], index[1:])


def _cut(
    steps: Steps, rules: Rules, index: I64, gap: Bool, missing: Callable[[int], str], *, t: I64 | None = None
) -> RowOrder:
    """Cut episodes at gaps, and where rows continue after an end.

    Args:
        steps: all rows.
        rules: whether there may be gaps; those that a filter made are not reported.
        index: `[K]` row of the steps.
        gap: `[K - 1]` pairs of rows of one episode between which rows are missing.
        missing: says what is missing between a pair.
        t: `[K]` timesteps; counted from 0 if None, with one left out at each gap.
    """
    if gap.any() and not rules.should_split_gaps:
        first = int(np.flatnonzero(gap)[0])
        raise rules.row_error(steps, int(index[first + 1]), f"{missing(first)}; {_SPLIT}")
    episode = steps.episode[index]
    other = episode[1:] != episode[:-1]
    restart = ~other & steps.is_end[index][:-1]
    begins = np.append(True, other | gap | restart)
    found: dict[Kind, Finding] = {}
    if restart.any():
        found["restarts"] = rules.finding(steps, np.sort(index[1:][restart]))
    if gap.any() and not rules.is_filtered:
        found["gaps"] = rules.finding(steps, np.sort(index[1:][gap]))
    if t is None:
        position = np.arange(len(index)) + np.cumsum(begins)
        starts = np.maximum.accumulate(np.where(np.append(True, other | restart), np.arange(len(index)), 0))
        t = position - position[starts]
    return RowOrder(index, begins, t, {}, found)


def breaks_between_files(steps: Steps, index: I64, rules: Rules) -> Bool:
    """`[K - 1]` pairs of rows in different files whose second row is not the next row that the first names."""
    pieces, of_row = np.unique(steps.piece[index], return_inverse=True)
    file = np.unique([rules.paths[piece] for piece in pieces.tolist()], return_inverse=True)[1][of_row]
    places = np.flatnonzero(file[1:] != file[:-1])
    found = np.zeros(len(index) - 1, dtype=np.bool_)
    found[places] = ~follows(steps, index[places], index[places + 1])
    return found


def _check_joined(steps: Steps, index: I64, same: Bool, rules: Rules) -> None:
    """Make sure that rows without an id, which t alone puts together, do not contradict each other between files."""
    places = np.flatnonzero(same & breaks_between_files(steps, index, rules))
    if len(places):
        last = rules.paths[int(steps.piece[index[places[0]]])]
        raise rules.row_error(
            steps,
            int(index[places[0] + 1]),
            f"the observation is not the next observation of {last}'s last row, and no id says that both are of "
            "the same episode: name its column by `schema` (eps_id); or set prepare.gaps to Split, which begins "
            "another episode",
        )


def _distinct(steps: Steps, index: I64, rules: Rules) -> tuple[I64, dict[Kind, Finding]]:
    """The rows without those that repeat the one before: the same episode, timestep, and all else."""
    assert steps.t is not None
    episode, t = steps.episode[index], steps.t[index]
    repeated = np.flatnonzero((episode[1:] == episode[:-1]) & (t[1:] == t[:-1])) + 1
    if not len(repeated):
        return index, {}
    one, other = index[repeated - 1], index[repeated]
    same = rows_equal(steps, one, other)
    if not same.all():
        first = int(np.flatnonzero(~same)[0])
        raise rules.row_error(
            steps,
            int(other[first]),
            f"the timestep is there twice, with other content in {rules.finding(steps, one[first : first + 1])}: "
            "are episode ids unique?",
        )
    what = f"it repeats {rules.finding(steps, one[:1])}"
    return np.delete(index, repeated), _repeated(steps, other, rules, "duplicates", what)


def _as_stored(steps: Steps, rules: Rules, chain: bool) -> RowOrder:
    """By stored order; with `chain`, episodes whose rows are not in order are chained if that is possible."""
    index, found = _once(steps, np.argsort(steps.episode, kind="stable"), rules)
    chained = np.zeros(0, dtype=np.int64)
    gap, restart = _broken(steps, index, chained)
    doubtful = np.unique(steps.episode[index][1:][gap | restart])
    if chain and len(doubtful) and has_next_obs(steps):
        chained, rows = chained_episodes(steps, doubtful)
        is_chained = np.isin(steps.episode[index], chained)
        found |= _repeated_rows(steps, np.sort(index[is_chained & ~np.isin(index, rows)]), rules)
        index = np.concatenate([index[~is_chained], rows])
        index = index[np.argsort(steps.episode[index], kind="stable")]
        gap, _ = _broken(steps, index, chained)
    order = _cut(steps, rules, index, gap & (not rules.should_join_gaps), lambda _: _UNORDERED)
    orders = {"stored": len(np.unique(steps.episode[index])) - len(chained), "chain": len(chained)}
    return replace(order, orders=orders, findings=found | order.findings)


def _broken(steps: Steps, index: I64, chained: I64) -> tuple[Bool, Bool]:
    """`[K - 1]` pairs of one episode, unless it was chained, whose second row does not follow, or follows an end."""
    episode, ended = steps.episode[index], steps.is_end[index]
    same = (episode[1:] == episode[:-1]) & ~np.isin(episode[1:], chained)
    return same & ~ended[:-1] & ~follows(steps, index[:-1], index[1:]), same & ended[:-1]


def _once(steps: Steps, index: I64, rules: Rules) -> tuple[I64, dict[Kind, Finding]]:
    """The rows without runs, from one end of their episode to the next, that repeat an earlier one of it."""
    episode, ended = steps.episode[index], steps.is_end[index]
    heads = np.append(True, (episode[1:] != episode[:-1]) | ended[:-1])
    repeated = repeated_runs(steps, index, heads)
    again = np.sort(index[repeated & heads])
    return index[~repeated], _repeated(
        steps, again, rules, "repeated", "the episode is stored again from it on"
    )


def _repeated(steps: Steps, rows: I64, rules: Rules, kind: Kind, what: str) -> dict[Kind, Finding]:
    """Rows that do not count, unless the rules refuse them: what the first of them does, says the refusal."""
    if not len(rows):
        return {}
    if rules.spec.duplicates == "Refuse":
        raise rules.row_error(steps, int(rows[0]), f"{what}, and prepare.duplicates is Refuse")
    return {kind: rules.finding(steps, np.sort(rows))}


def _repeated_rows(steps: Steps, rows: I64, rules: Rules) -> dict[Kind, Finding]:
    """Rows that do not count, since they repeat others that were chained."""
    return _repeated(steps, rows, rules, "duplicates", "it repeats another row")


def _chained(steps: Steps, rules: Rules) -> RowOrder:
    """By chaining alone; rows of an episode in several chains are pieces of it."""
    if not has_next_obs(steps):
        raise rules.input_error(steps, "the data have no 'new_obs', which prepare.order Chain uses")
    all_rows = np.arange(len(steps))
    index, chain, ambiguous = chains_of(steps, all_rows)
    if ambiguous.any():
        raise rules.row_error(
            steps,
            int(index[ambiguous].min()),
            "an observation occurs twice in the episode, so its rows cannot be chained; choose another order",
        )
    episode = steps.episode[index]
    gap = (episode[1:] == episode[:-1]) & (chain[1:] != chain[:-1]) & ~steps.is_end[index][:-1]
    order = _cut(steps, rules, index, gap, lambda _: _UNCHAINED)
    found = _repeated_rows(steps, np.setdiff1d(all_rows, index), rules)
    return replace(order, orders={"chain": len(np.unique(steps.episode))}, findings=found | order.findings)
