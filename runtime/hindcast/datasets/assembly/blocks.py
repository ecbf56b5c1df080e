"""Assemble rows into blocks of complete episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.api.input import PrepareSpec
from hindcast.datasets.assembly.autoreset import find_reset_rows
from hindcast.datasets.assembly.ordering import RowOrder, find_file_changes, order_rows
from hindcast.datasets.assembly.row_comparison import follows, has_next_obs
from hindcast.datasets.assembly.rules import FindingKind, Findings, Rules
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.validate import all_finite
from hindcast.episodes.block import I64, Block, Bool
from hindcast.episodes.columns import Columns, leaves_of, next_leaf, root
from hindcast.episodes.details import to_text
from hindcast.errors import DataError
from hindcast.formats.columns import infos
from hindcast.formats.columns.layout import COLUMNS_LAYOUT
from hindcast.formats.format import ReadOptions
from hindcast.formats.layout import CellError
from hindcast.formats.registry import FORMATS
from hindcast.formats.rows import AGENT_COLUMNS, Rows
from hindcast.formats.spec import Leaf, describe_array
from hindcast.storage.location import Location

_FINAL_OBS_REMEDIES: Final = (
    "set prepare.cutOffSteps: Drop to leave out the last steps of episodes that did not terminate, or "
    "set ignoreFinalObservation: true to repeat the last observation"
)


def assemble(steps: Steps, rules: Rules) -> tuple[Block | None, Findings]:
    """Assemble complete episodes.

    Args:
        steps: all rows of the episodes, in stored order.
        rules: the rules to follow.

    Returns:
        The episodes, or None if none are left; and the findings.

    Raises:
        DataError: the rows do not form complete episodes under the rules.
    """
    num_rows = len(steps)
    steps, reset_findings = _drop_reset_rows(_unify_obs_dtypes(steps, rules), rules)
    if not len(steps):
        return None, Findings(rows=num_rows, by_kind=reset_findings, left_out=dict(steps.left_out))
    order = order_rows(steps, rules)
    unfinished_episodes = _find_unfinished(steps, order, rules)
    findings = {
        **reset_findings,
        **order.findings,
        **_unfinished_findings(steps, order, unfinished_episodes, rules),
    }
    index, is_start, t = order.index, order.is_start, order.t
    if rules.spec.unfinished == "Drop":
        is_kept = ~np.isin(steps.episode[index], unfinished_episodes)
        index, is_start, t = index[is_kept], is_start[is_kept], t[is_kept]
    # Only an order by `t` is checked here. `order_rows` has compared the observations for the other orders; if
    # prepare.gaps is Join, it accepts the stored order whatever the observations are.
    if "time" in order.orders and len(index):
        is_mismatch = np.append(False, ~is_start[1:] & ~follows(steps, index[:-1], index[1:]))
        if is_mismatch.any():
            findings["unlike"] = rules.make_finding(steps, np.sort(index[is_mismatch]))
    findings |= _joined_findings(steps, index, is_start, rules) | _find_same_observations(
        steps, index, is_start, rules
    )
    is_last = np.append(is_start[1:], True)[: len(index)]  # without rows, the slice removes the True
    steps = _add_durations(steps, index, is_last, rules)
    lacks_next_obs = _rows_without_next_obs(steps, index, is_last, rules)
    should_drop = lacks_next_obs & ~steps.terminated[index] & (rules.spec.cut_off_steps == "Drop")
    findings |= _final_obs_findings(steps, index[lacks_next_obs & ~should_drop], index[should_drop], rules)
    if (is_single := should_drop & is_start & is_last).any():
        findings["vanished"] = rules.make_finding(steps, np.sort(index[is_single]))
    should_drop |= steps.is_obs_only[index]
    if should_drop.any():
        # In a fragment of one row, no other row becomes the last: the fragment is dropped.
        dropped_positions = np.flatnonzero(should_drop & ~is_start)
        steps = _move_ends(steps, index[dropped_positions - 1], index[dropped_positions])
        index, is_start, t = index[~should_drop], is_start[~should_drop], t[~should_drop]
    if not len(index):
        return None, Findings(
            rows=num_rows, orders=order.orders, by_kind=findings, left_out=dict(steps.left_out)
        )
    block = _make_block(steps, index, is_start, t, rules)
    return block, Findings(
        rows=num_rows,
        episodes=block.num_episodes,
        timesteps=block.num_steps,
        orders=order.orders,
        by_kind=findings,
        left_out=dict(steps.left_out),
        missing=_find_missing_values(steps, index, rules),
    )


def _make_block(steps: Steps, index: I64, is_start: Bool, t: I64, rules: Rules) -> Block:
    """Make the block of all fragments, each of which becomes an episode.

    Args:
        steps: all rows, with their durations.
        index: `[K]` index into the steps, in order; at least one.
        is_start: `[K]` True for the first row of a fragment.
        t: `[K]` timestep in the episode.
        rules: the rules, which locate rows.

    Raises:
        DataError: an info is not JSON, or the observations cannot get the time.
    """
    starts = np.flatnonzero(is_start)
    length = np.diff(np.append(starts, len(index)))
    last_rows = index[starts + length - 1]
    episode_block = Block(
        columns={},
        length=length,
        eps_id=steps.episode_ids[steps.episode[index[starts]]],
        t_started=t[starts],
        terminated=steps.terminated[last_rows],
        truncated=steps.truncated[last_rows],
    )
    columns = _make_columns(steps, index, last_rows, episode_block)
    if Columns.TIME in steps.columns:
        columns[Columns.DELTA_T] = _fill_last_durations(columns[Columns.DELTA_T], episode_block)
        if rules.observes_time:
            columns[Columns.OBS] = _append_delta_t(
                columns, episode_block, lambda text: rules.make_input_error(steps, text)
            )
    details = None
    if Columns.INFOS in steps.columns:
        info_texts, details = _decode_infos(
            steps.columns[Columns.INFOS][index], steps, index, episode_block, rules
        )
        columns[Columns.INFOS] = info_texts
    details = _with_agent_ids(details, steps, index[starts])
    return replace(episode_block, columns=columns, details=details)


def _add_durations(steps: Steps, index: I64, is_last: Bool, rules: Rules) -> Steps:
    """Return the steps with their durations, from the times of their rows; NaN where no row follows in the fragment.

    Args:
        steps: all rows.
        index: `[K]` index into the steps, in order.
        is_last: `[K]` True for the last row of a fragment.
        rules: the rules, which locate rows.

    Raises:
        DataError: the time of a row is before that of the episode's previous row.
    """
    if Columns.TIME not in steps.columns:
        return steps
    # Divided after the difference, which is exact, so that equal spacing is exactly equal.
    differences = np.diff(steps.columns[Columns.TIME][index])
    if differences.dtype.kind == "m":
        differences = differences / np.timedelta64(1, "us")
    durations = np.append(differences / rules.time_unit, np.nan)
    durations[is_last] = np.nan
    if (is_backwards := durations < 0).any():
        raise rules.make_row_error(
            steps,
            int(index[np.flatnonzero(is_backwards)[0] + 1]),
            "the time is before that of the episode's previous row; to order the rows by time, name its column as t "
            "under `schema`, too",
        )
    # Whole episodes in one row may have no time for the final observation, which then has the last step's time.
    has_no_time = np.append(steps.is_obs_only[index][1:], False) & (durations == 0)
    delta_t = np.full(len(steps), np.nan)
    delta_t[index] = np.where(has_no_time, np.nan, durations)
    return replace(steps, columns={**steps.columns, Columns.DELTA_T: delta_t})


def _fill_last_durations(delta_t: NDArray[Any], episode_block: Block) -> NDArray[Any]:
    """Replace the unknown duration of an episode's last step by the mean of its other steps; 1 if there are none."""
    sums = np.add.reduceat(np.nan_to_num(delta_t), episode_block.start)
    means = np.where(episode_block.length > 1, sums / np.maximum(episode_block.length - 1, 1), 1.0)
    return np.where(np.isnan(delta_t), np.repeat(means, episode_block.length), delta_t)


def _append_delta_t(
    columns: Mapping[str, NDArray[Any]], episode_block: Block, make_error: Callable[[str], DataError]
) -> NDArray[Any]:
    """Return the observations `[O, k + 1]`, with the time since the previous one as the last element; 0 at first."""
    obs = columns.get(Columns.OBS)
    if obs is None or obs.dtype.kind not in "biuf" or obs.ndim > 2:
        raise make_error("time.observe is true, which requires obs to be one vector of numbers")
    delta_t = np.zeros((len(obs), 1), obs.dtype if obs.dtype.kind == "f" else np.float64)
    delta_t[episode_block.obs_row + 1, 0] = columns[Columns.DELTA_T]
    return np.concatenate([obs.reshape(len(obs), -1), delta_t], 1)


def _find_missing_values(steps: Steps, index: I64, rules: Rules) -> dict[str, Any]:
    """Find the rows without a value (NaN) of each element of the observations."""
    missing: dict[str, Any] = {}
    for name in leaves_of(Columns.OBS, steps.columns):
        column = steps.columns[name]
        if column.dtype.kind != "f" or all_finite(column):
            continue
        leaf = Leaf(column.dtype, column.shape[1:]).with_names(rules.names.get(name, ()))
        element_names = leaf.element_names(name)
        flat_values = column[index].reshape(len(index), len(element_names), -1)
        is_missing = np.asarray(np.isnan(flat_values).any(axis=2))
        for position in np.flatnonzero(is_missing.any(axis=0)):
            rows = np.sort(index[is_missing[:, position]])
            missing[element_names[position]] = rules.make_finding(steps, rows)
    return missing


def _drop_reset_rows(steps: Steps, rules: Rules) -> tuple[Steps, dict[FindingKind, Any]]:
    """Drop rows that only reset a vector environment, if the data have such rows."""
    if not rules.has_reset_rows:
        return steps, {}
    is_reset = find_reset_rows(steps, is_grouped=rules.is_grouped)
    if not is_reset.any():
        return steps, {}
    return steps.take(~is_reset), {"resets": rules.make_finding(steps, is_reset)}


def _joined_findings(steps: Steps, index: I64, is_start: Bool, rules: Rules) -> dict[FindingKind, Any]:
    """Report the rows at which episodes continue in another file, if their ids are the only evidence of that."""
    if not rules.is_grouped or steps.t is not None or has_next_obs(steps) or not len(index):
        return {}
    is_joined = ~is_start[1:] & find_file_changes(steps, index, rules)
    return {"joined": rules.make_finding(steps, np.sort(index[1:][is_joined]))} if is_joined.any() else {}


def _find_same_observations(steps: Steps, index: I64, is_start: Bool, rules: Rules) -> dict[FindingKind, Any]:
    """Report the last rows of episodes, if each next observation is the first one of the following episode."""
    if rules.has_reset_rows or rules.is_filtered or not has_next_obs(steps) or not len(index):
        return {}
    is_pair = is_start[1:] & steps.is_end[index[:-1]] & ~steps.next_missing[index[:-1]]
    last_rows, first_rows = index[:-1][is_pair], index[1:][is_pair]
    # Where all episodes begin alike, they may well end alike.
    if len(first_rows) < 2 or not follows(steps, last_rows, first_rows).all():
        return {}
    names = leaves_of(Columns.OBS, steps.columns)
    if all((steps.columns[name][first_rows] == steps.columns[name][first_rows[0]]).all() for name in names):
        return {}
    return {"same_obs": rules.make_finding(steps, np.sort(last_rows))}


def read_exported_file(location: Location, layout: str) -> Block:
    """Read all episodes of a file in an exported layout, in the file's order.

    Raises:
        DataError: the file is damaged or holds no episodes.
        StorageError: the file cannot be read.
    """
    file_format, options = FORMATS["Parquet" if layout == COLUMNS_LAYOUT else layout], ReadOptions()
    pieces = file_format.list_pieces(location, options)
    chunks = [
        Steps.from_rows(rows, piece_index)
        for piece_index, piece in enumerate(pieces)
        for rows in file_format.read(piece, options)
        if isinstance(rows, Rows)  # always: no exported layout is read as blocks
    ]
    paths = [str(location)] * len(pieces)
    block, _ = assemble(Steps.concat(chunks, paths), Rules(PrepareSpec(), paths))
    if block is None:
        raise DataError("holds no episodes", path=str(location))
    return block


def _unfinished_findings(
    steps: Steps, order: RowOrder, unfinished_episodes: I64, rules: Rules
) -> dict[FindingKind, Any]:
    """Report the unfinished episodes that are kept, or all rows of those that are dropped.

    Raises:
        DataError: there are unfinished episodes, and the rules refuse them.
    """
    if not len(unfinished_episodes):
        return {}
    first_rows = order.index[np.append(True, np.diff(steps.episode[order.index]) != 0)]
    first_rows = np.sort(first_rows[np.isin(steps.episode[first_rows], unfinished_episodes)])
    if rules.spec.unfinished == "Refuse":
        raise rules.make_row_error(
            steps,
            int(first_rows[0]),
            "the episode ends neither terminated nor truncated, but prepare.unfinished is Refuse; set it "
            "to Keep or Drop",
        )
    if rules.spec.unfinished == "Keep":
        return {"unfinished": rules.make_finding(steps, first_rows)}
    return {"dropped": rules.make_finding(steps, np.isin(steps.episode, unfinished_episodes))}


def _find_unfinished(steps: Steps, order: RowOrder, rules: Rules) -> I64:
    """Return the indices of the episodes whose last row neither terminates nor truncates them; none with a filter."""
    # A filter leaves an unfinished fragment at every gap, so `prepare.unfinished` does not apply.
    if rules.is_filtered:
        return np.zeros(0, dtype=np.int64)
    episode = steps.episode[order.index]
    last_rows = order.index[np.append(episode[1:] != episode[:-1], True)]
    return steps.episode[last_rows[~steps.is_end[last_rows]]]


def _rows_without_next_obs(steps: Steps, index: I64, is_last: Bool, rules: Rules) -> Bool:
    """Return `[K]` True for the last rows of fragments whose next observation is not in the data.

    Args:
        steps: all rows.
        index: `[K]` index into the steps, in order; rows of dropped episodes are not included.
        is_last: `[K]` True for the last row of a fragment.
        rules: say whether a last row may lack its next observation.

    Raises:
        DataError: a next observation is missing in a row that is not the last of its fragment; or in a last row that
            did not terminate, and the rules do not allow it. It may always be missing in a terminated row, after which
            nothing is observed.
    """
    is_missing = steps.next_missing[index] if has_next_obs(steps) else is_last
    is_missing = is_missing & ~steps.is_obs_only[index]
    is_cut_off = is_missing & ~steps.terminated[index]
    if not has_next_obs(steps) and is_cut_off.any() and not rules.can_lack_final_obs:
        raise rules.make_input_error(
            steps,
            "the column 'new_obs' is missing, so the data have no observation after the last row of an episode that "
            f"did not terminate; name its column under `schema`; or {_FINAL_OBS_REMEDIES}",
        )
    for is_refused, place, remedy in (
        (is_missing & ~is_last, "in a row that does not end its episode", ", or flag the row as the end"),
        (
            is_cut_off & (not rules.can_lack_final_obs),
            "where its episode ends",
            f"; or {_FINAL_OBS_REMEDIES}",
        ),
    ):
        if is_refused.any():
            raise rules.make_row_error(
                steps,
                int(index[is_refused].min()),
                f"'new_obs' is null {place}: fill it{remedy}",
            )
    return is_missing


def _final_obs_findings(
    steps: Steps, repeated_rows: I64, dropped_rows: I64, rules: Rules
) -> dict[FindingKind, Any]:
    """Report the last rows of fragments whose next observation is not in the data.

    Args:
        steps: all rows.
        repeated_rows: the rows that get their own observation as next observation.
        dropped_rows: the rows that are dropped.
        rules: the rules, which locate rows.
    """
    rows: dict[FindingKind, I64] = {"no_final_obs": repeated_rows, "cut_off": dropped_rows}
    return {
        kind: rules.make_finding(steps, np.sort(indices)) for kind, indices in rows.items() if len(indices)
    }


def _move_ends(steps: Steps, new_last_rows: I64, dropped_rows: I64) -> Steps:
    """Make each row in `new_last_rows` the last of its fragment, in place of the following row in `dropped_rows`.

    The new last row gets the dropped row's observation as its next observation, and the dropped row's flags.
    The rows stay in the result; the caller removes them from the index.
    """
    terminated, truncated = steps.terminated.copy(), steps.truncated.copy()
    terminated[new_last_rows] = steps.terminated[dropped_rows]
    truncated[new_last_rows] = steps.truncated[dropped_rows]
    columns = dict(steps.columns)
    for name in leaves_of(Columns.OBS, steps.columns):
        obs = steps.columns[name]
        recorded_next_obs = steps.columns.get(next_leaf(name))
        next_obs = (obs if recorded_next_obs is None else recorded_next_obs).copy()
        next_obs[new_last_rows] = obs[dropped_rows]
        columns[next_leaf(name)] = next_obs
    return replace(steps, columns=columns, terminated=terminated, truncated=truncated)


def _unify_obs_dtypes(steps: Steps, rules: Rules) -> Steps:
    """Convert observations and next observations to a common dtype, leaf by leaf.

    Raises:
        DataError: the data have no observations; or a leaf of the next observations is missing, or differs from the
            leaf of the observations in shape, or in being text.
    """
    names = leaves_of(Columns.OBS, steps.columns)
    if not names:
        raise rules.make_input_error(
            steps, f"the column 'obs' is missing: found {sorted(steps.columns)}; name it under `schema`"
        )
    if not has_next_obs(steps):
        return steps
    columns = dict(steps.columns)
    for name in names:
        obs, next_obs = columns[name], columns.get(next_leaf(name))
        if next_obs is None:
            raise rules.make_input_error(
                steps,
                f"the column {next_leaf(name)!r} is missing, although the data have other columns of 'new_obs'; name "
                "it under `schema`",
            )
        if next_obs.shape != obs.shape or (next_obs.dtype == object) != (obs.dtype == object):
            raise rules.make_input_error(
                steps,
                f"{name!r} is {describe_array(obs)}, but {next_leaf(name)!r} is {describe_array(next_obs)}: both must "
                "be numbers of one shape, or both text",
            )
        if next_obs.dtype != obs.dtype:
            common_dtype = np.result_type(obs, next_obs)
            columns[name], columns[next_leaf(name)] = obs.astype(common_dtype), next_obs.astype(common_dtype)
    return replace(steps, columns=columns)


def _make_columns(steps: Steps, index: I64, last_rows: I64, episode_block: Block) -> dict[str, NDArray[Any]]:
    """Return the columns of a block, except infos; `episode_block` has the block's episodes, but no columns yet."""
    columns: dict[str, NDArray[Any]] = {}
    for name, column in steps.columns.items():
        if root(name) == Columns.OBS:
            columns[name] = _make_observations(
                column, steps.columns.get(next_leaf(name)), index, last_rows, episode_block
            )
        elif root(name) not in (Columns.NEXT_OBS, Columns.INFOS, Columns.TIME, *AGENT_COLUMNS):
            columns[name] = column[index]
    return columns


def _with_agent_ids(
    details: NDArray[np.object_] | None, steps: Steps, first_rows: I64
) -> NDArray[np.object_] | None:
    """Fill empty details of episodes with the ids of the agent and the module in the episode's first row.

    Args:
        details: `[N]` JSON text, "" if empty; None if no episode has details.
        steps: all rows.
        first_rows: `[N]` index of each episode's first row.

    Returns:
        `[N]` JSON text; None if no episode has details.
    """
    ids_by_column = {
        name: steps.columns[name][first_rows].tolist() for name in AGENT_COLUMNS if name in steps.columns
    }
    if not ids_by_column:
        return details
    texts = [
        to_text(**{name: value or None for name, value in zip(ids_by_column, ids, strict=True)})
        for ids in zip(*ids_by_column.values(), strict=True)
    ]
    if details is not None:
        texts = [str(detail) or text for detail, text in zip(details, texts, strict=True)]
    return np.array(texts, dtype=object) if any(texts) else None


def _make_observations(
    obs: NDArray[Any], next_obs: NDArray[Any] | None, index: I64, last_rows: I64, episode_block: Block
) -> NDArray[Any]:
    """Return `[K + N, *shape]`: the observations of each episode, then its final observation.

    An unknown final observation is the last one again: no other value is sure to be in the space. Statistics of
    observations cover those of steps only, so the repeated one is not counted.
    """
    observations = np.empty((len(index) + episode_block.num_episodes, *obs.shape[1:]), dtype=obs.dtype)
    observations[episode_block.obs_row] = obs[index]
    final_rows = episode_block.obs_start + episode_block.length
    observations[final_rows] = (obs if next_obs is None else next_obs)[last_rows]
    return observations


def _decode_infos(
    cells: NDArray[Any], steps: Steps, index: I64, episode_block: Block, rules: Rules
) -> tuple[NDArray[np.object_], NDArray[np.object_] | None]:
    try:
        return infos.decode_info_cells(cells, episode_block)
    except CellError as error:
        raise rules.make_row_error(steps, int(index[error.row]), str(error)) from error
