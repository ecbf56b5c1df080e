"""Order the rows of episodes: by timestep, as stored, or by chaining observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from hindcast.datasets.assembly.id_scopes import describe_id_scopes
from hindcast.datasets.assembly.row_comparison import (
    find_chainable_episodes,
    find_chains,
    find_repeated_segments,
    follows,
    has_next_obs,
    rows_equal,
)
from hindcast.datasets.assembly.rules import Finding, FindingKind, Rules
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import I64, Bool

_SPLIT_REMEDY = "set prepare.gaps to Split to cut such episodes into fragments"
_JOIN_REMEDY = ", unless t orders timesteps without counting them (then set prepare.gaps to Join)"
_ORDER_PROBLEM = (
    "the observation differs from the next observation of the episode's previous row in stored order, and the rows "
    "cannot be ordered by 't' or by their observations, or prepare.order does not allow it"
)
_CHAIN_PROBLEM = (
    "the observation is not the next observation of any row, so the timestep before it is missing"
)


@dataclass(frozen=True, eq=False)
class RowOrder:
    """Rows in order. Shape suffix: K = rows without duplicates.

    Attributes:
        index: `[K]` index into the steps.
        is_start: `[K]` True for the first row of a fragment: of an episode, after a gap, or after a row that ends the
            episode.
        t: `[K]` timestep in the episode.
        orders: see `Findings`.
        findings: see `Findings.by_kind`.
    """

    index: I64
    is_start: Bool
    t: I64
    orders: dict[str, int] = field(default_factory=dict)
    findings: dict[FindingKind, Finding] = field(default_factory=dict)


def order_rows(steps: Steps, rules: Rules) -> RowOrder:
    """Order the rows of complete episodes.

    Args:
        steps: at least one row, in stored order.
        rules: the rules for ordering.

    Raises:
        DataError: the order of the rows is ambiguous, rows are missing, or rows contradict each other.
    """
    order_option = rules.spec.order
    if order_option == "Time" and steps.t is None:
        raise rules.make_input_error(
            steps, "prepare.order is Time, which requires 't'; name it under `schema`"
        )
    if steps.t is not None and order_option in ("Auto", "Time"):
        return _order_by_time(steps, rules)
    if order_option == "Chain" and not rules.is_grouped:
        raise rules.make_input_error(
            steps, "prepare.order is Chain, which requires 'eps_id'; name it under `schema`"
        )
    if rules.is_filtered and not has_next_obs(steps):
        raise rules.make_input_error(
            steps,
            "the columns 't' and 'new_obs' are missing, so the order of the rows that pass the filter is "
            "unknown; name one of them under `schema`",
        )
    steps = replace(steps, t=None)  # `t` does not decide the order, so messages must not name it
    if order_option == "Chain":
        return _order_by_chains(steps, rules)
    return _order_as_stored(steps, rules, should_chain=order_option == "Auto" and rules.is_grouped)


def _order_by_time(steps: Steps, rules: Rules) -> RowOrder:
    assert steps.t is not None
    index = np.lexsort((steps.t, steps.episode))
    index, findings = _drop_duplicate_rows(steps, index, rules)
    episode, t, is_end = steps.episode[index], steps.t[index], steps.is_end[index]
    is_same_episode = episode[1:] == episode[:-1]
    if not rules.is_grouped and not rules.should_split_gaps:
        _check_file_transitions(steps, index, is_same_episode & ~is_end[:-1], rules)
    is_episode_start = np.append(True, ~is_same_episode)
    orders = {"time": int(is_episode_start.sum())}
    if rules.spec.gaps == "Join" or not steps.has_step_index:
        # Only a filter makes gaps here, and gaps that a filter makes are allowed: `_ORDER_PROBLEM` is never raised.
        is_gap = _find_filter_gaps(steps, index, rules) & is_same_episode & ~is_end[:-1]
        order = _cut_at_gaps(steps, rules, index, is_gap, lambda _: _ORDER_PROBLEM)
        return replace(order, orders=orders, findings=findings | order.findings)
    late_rows = index[is_episode_start & (t > 0)]
    if len(late_rows):
        findings["late"] = rules.make_finding(steps, np.sort(late_rows))
    is_gap = is_same_episode & (np.diff(t) != 1) & ~is_end[:-1]

    def describe_gap(i: int) -> str:
        return f"t is {t[i + 1]} after {t[i]}: timestep {t[i] + 1} is missing{_JOIN_REMEDY}"

    order = _cut_at_gaps(steps, rules, index, is_gap, describe_gap, t=t)
    return replace(order, orders=orders, findings=findings | order.findings)


def _find_filter_gaps(steps: Steps, index: I64, rules: Rules) -> Bool:
    """Return `[K - 1]` True for pairs of rows whose observations show that a filter dropped rows between them."""
    if not rules.is_filtered:
        return np.zeros(len(index) - 1, dtype=np.bool_)
    if not has_next_obs(steps):
        raise rules.make_input_error(
            steps,
            "'t' does not count timesteps and the column 'new_obs' is missing, so consecutive rows cannot "
            "be told from gaps that the filter leaves; name the next observation under `schema`, or leave "
            "out the filter",
        )
    return ~follows(steps, index[:-1], index[1:])


def _cut_at_gaps(
    steps: Steps,
    rules: Rules,
    index: I64,
    is_gap: Bool,
    describe_gap: Callable[[int], str],
    *,
    t: I64 | None = None,
) -> RowOrder:
    """Cut episodes at gaps, and after rows that end them; the result's `orders` are empty.

    Args:
        steps: all rows.
        rules: say whether gaps are allowed; gaps that a filter leaves are not reported.
        index: `[K]` index into the steps.
        is_gap: `[K - 1]` True for pairs of adjacent rows of one episode between which rows are missing.
        describe_gap: returns a sentence about the gap between the rows `index[i]` and `index[i + 1]`, given `i`.
        t: `[K]` timesteps; if None, they are counted from 0, and one timestep is skipped at each gap.

    Raises:
        DataError: there is a gap, and the rules do not allow it.
    """
    if is_gap.any() and not rules.should_split_gaps:
        first_gap = int(np.flatnonzero(is_gap)[0])
        raise rules.make_row_error(
            steps, int(index[first_gap + 1]), f"{describe_gap(first_gap)}; {_SPLIT_REMEDY}"
        )
    episode = steps.episode[index]
    is_new_episode = episode[1:] != episode[:-1]
    is_restart = ~is_new_episode & steps.is_end[index][:-1]
    is_start = np.append(True, is_new_episode | is_gap | is_restart)
    findings: dict[FindingKind, Finding] = {}
    if is_restart.any():
        findings["restarts"] = rules.make_finding(steps, np.sort(index[1:][is_restart]))
    if is_gap.any() and not rules.is_filtered:
        findings["gaps"] = rules.make_finding(steps, np.sort(index[1:][is_gap]))
    if t is None:
        position = np.arange(len(index)) + np.cumsum(is_start)
        starts = np.maximum.accumulate(
            np.where(np.append(True, is_new_episode | is_restart), np.arange(len(index)), 0)
        )
        t = position - position[starts]
    return RowOrder(index, is_start, t, {}, findings)


def find_file_changes(steps: Steps, index: I64, rules: Rules) -> Bool:
    """Return `[K - 1]` True for adjacent rows in different files."""
    parts, part_index = np.unique(steps.part[index], return_inverse=True)
    if len(parts) == 1:
        return np.zeros(len(index) - 1, dtype=np.bool_)
    _, file_of_part = np.unique([rules.paths[part] for part in parts.tolist()], return_inverse=True)
    file_index = file_of_part[part_index]
    return file_index[1:] != file_index[:-1]


def find_breaks_between_files(steps: Steps, index: I64, rules: Rules) -> Bool:
    """Return `[K - 1]` True for adjacent rows in different files whose second row does not follow the first."""
    is_break = find_file_changes(steps, index, rules)
    pairs = np.flatnonzero(is_break)
    is_break[pairs] = ~follows(steps, index[pairs], index[pairs + 1])
    return is_break


def _check_file_transitions(steps: Steps, index: I64, is_continued: Bool, rules: Rules) -> None:
    """Check that rows without ids follow each other by their observations where an episode continues in another file.

    Args:
        steps: all rows.
        index: `[K]` index into the steps.
        is_continued: `[K - 1]` True for pairs of adjacent rows that are taken for one episode.
        rules: the rules, which locate rows.

    Raises:
        DataError: the rows on both sides of a file's end do not follow each other.
    """
    pairs = np.flatnonzero(is_continued & find_breaks_between_files(steps, index, rules))
    if len(pairs):
        previous_path = rules.paths[int(steps.part[index[pairs[0]]])]
        raise rules.make_row_error(
            steps,
            int(index[pairs[0] + 1]),
            f"the observation differs from the next observation of {previous_path}'s last row, and no id says that "
            "both belong to the same episode: name the column of ids under `schema` (eps_id), or set "
            "prepare.gaps to Split, which begins another episode here",
        )


def _drop_duplicate_rows(steps: Steps, index: I64, rules: Rules) -> tuple[I64, dict[FindingKind, Finding]]:
    """Drop rows that repeat the previous row in episode, timestep, flags and all columns.

    Returns:
        The index of the remaining rows, and the finding on the dropped rows, if any.

    Raises:
        DataError: rows of one timestep differ, or the rules refuse repeated rows.
    """
    assert steps.t is not None
    episode, t = steps.episode[index], steps.t[index]
    repeats = np.flatnonzero((episode[1:] == episode[:-1]) & (t[1:] == t[:-1])) + 1
    if not len(repeats):
        return index, {}
    first_rows, second_rows = index[repeats - 1], index[repeats]
    is_equal = rows_equal(steps, first_rows, second_rows)
    if not is_equal.all():
        first_conflict = int(np.flatnonzero(~is_equal)[0])
        rows = (
            second_rows[first_conflict : first_conflict + 1],
            first_rows[first_conflict : first_conflict + 1],
        )
        finding, other_finding = (rules.make_finding(steps, row) for row in rows)
        advice = describe_id_scopes(other_finding.path or "", finding.path or "")
        raise rules.make_row_error(
            steps,
            int(rows[0][0]),
            f"the timestep occurs twice, with different content in {other_finding}, so the episode's id is not "
            f"unique: {advice}",
        )
    problem = f"the row repeats {rules.make_finding(steps, first_rows[:1])}"
    return np.delete(index, repeats), _repeat_findings(steps, second_rows, rules, "duplicates", problem)


def _order_as_stored(steps: Steps, rules: Rules, should_chain: bool) -> RowOrder:
    """Order rows as they are stored; with `should_chain`, chain episodes that are out of order, if possible."""
    index, findings = _drop_repeated_segments(steps, np.argsort(steps.episode, kind="stable"), rules)
    chained_episodes = np.zeros(0, dtype=np.int64)
    is_gap, is_restart = _find_breaks(steps, index, chained_episodes)
    broken_episodes = np.unique(steps.episode[index][1:][is_gap | is_restart])
    if should_chain and len(broken_episodes) and has_next_obs(steps):
        chained_episodes, rows = find_chainable_episodes(steps, broken_episodes)
        is_chained = np.isin(steps.episode[index], chained_episodes)
        findings |= _duplicate_findings(steps, np.sort(index[is_chained & ~np.isin(index, rows)]), rules)
        index = np.concatenate([index[~is_chained], rows])
        index = index[np.argsort(steps.episode[index], kind="stable")]
        is_gap, _ = _find_breaks(steps, index, chained_episodes)
    if rules.should_join_gaps and is_gap.any():
        findings["unlike"] = rules.make_finding(steps, np.sort(index[1:][is_gap]))
    # With prepare.gaps Join, rows that do not follow each other are consecutive all the same.
    order = _cut_at_gaps(steps, rules, index, is_gap & (not rules.should_join_gaps), lambda _: _ORDER_PROBLEM)
    orders = {
        "stored": len(np.unique(steps.episode[index])) - len(chained_episodes),
        "chain": len(chained_episodes),
    }
    return replace(order, orders=orders, findings=findings | order.findings)


def _find_breaks(steps: Steps, index: I64, chained_episodes: I64) -> tuple[Bool, Bool]:
    """Find breaks in the episodes that were not chained.

    Returns:
        Two masks `[K - 1]` over pairs of adjacent rows: the second row does not follow the first; the first row ends
        the episode.
    """
    episode, is_end = steps.episode[index], steps.is_end[index]
    is_same_episode = (episode[1:] == episode[:-1]) & ~np.isin(episode[1:], chained_episodes)
    is_gap = is_same_episode & ~is_end[:-1] & ~follows(steps, index[:-1], index[1:])
    is_restart = is_same_episode & is_end[:-1]
    return is_gap, is_restart


def _drop_repeated_segments(steps: Steps, index: I64, rules: Rules) -> tuple[I64, dict[FindingKind, Finding]]:
    """Drop segments, from one end of an episode to the next, that repeat an earlier segment of the episode."""
    episode, is_end = steps.episode[index], steps.is_end[index]
    is_segment_start = np.append(True, (episode[1:] != episode[:-1]) | is_end[:-1])
    is_repeated = find_repeated_segments(steps, index, is_segment_start)
    first_rows = np.sort(index[is_repeated & is_segment_start])
    return index[~is_repeated], _repeat_findings(
        steps, first_rows, rules, "repeated", "the episode is stored again from this row on"
    )


def _repeat_findings(
    steps: Steps, rows: I64, rules: Rules, kind: FindingKind, problem: str
) -> dict[FindingKind, Finding]:
    """Report dropped rows; `problem` describes `rows[0]`.

    Raises:
        DataError: there are rows, and the rules refuse repeated rows.
    """
    if not len(rows):
        return {}
    if rules.spec.duplicates == "Refuse":
        raise rules.make_row_error(
            steps, int(rows[0]), f"{problem}, but prepare.duplicates is Refuse; set it to Drop"
        )
    return {kind: rules.make_finding(steps, np.sort(rows))}


def _duplicate_findings(steps: Steps, rows: I64, rules: Rules) -> dict[FindingKind, Finding]:
    """Report rows that were dropped because they repeat chained rows."""
    return _repeat_findings(steps, rows, rules, "duplicates", "the row repeats another row of its episode")


def _order_by_chains(steps: Steps, rules: Rules) -> RowOrder:
    """Order rows only by chaining; if an episode has several chains, each becomes a fragment."""
    if not has_next_obs(steps):
        raise rules.make_input_error(steps, "prepare.order is Chain, which requires 'new_obs'")
    all_rows = np.arange(len(steps))
    index, chain, is_ambiguous = find_chains(steps, all_rows)
    if is_ambiguous.any():
        raise rules.make_row_error(
            steps,
            int(index[is_ambiguous].min()),
            "an observation occurs twice in the episode (or its rows form a cycle), so the rows cannot be chained; set "
            "prepare.order to another order",
        )
    episode = steps.episode[index]
    is_gap = (episode[1:] == episode[:-1]) & (chain[1:] != chain[:-1]) & ~steps.is_end[index][:-1]
    order = _cut_at_gaps(steps, rules, index, is_gap, lambda _: _CHAIN_PROBLEM)
    findings = _duplicate_findings(steps, np.setdiff1d(all_rows, index), rules)
    return replace(order, orders={"chain": len(np.unique(steps.episode))}, findings=findings | order.findings)
