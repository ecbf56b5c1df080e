"""Rows in order to blocks of complete episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.api.input import PrepareSpec
from hindcast.datasets.assembly.ordering import RowOrder, order_rows
from hindcast.datasets.assembly.row_comparison import follows, has_next_obs
from hindcast.datasets.assembly.rules import Findings, Kind, Rules
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import I64, Block, Bool
from hindcast.episodes.columns import Columns, leaves_of, next_leaf, root
from hindcast.episodes.details import to_text
from hindcast.errors import DataError
from hindcast.formats.columns import infos
from hindcast.formats.columns.layout import COLUMNS_LAYOUT
from hindcast.formats.format import ReadOptions
from hindcast.formats.layout import CellError
from hindcast.formats.registry import FORMATS
from hindcast.formats.rows import ACTOR_COLUMNS, Rows
from hindcast.storage.location import Location

_FINAL_CHOICES: Final = (
    "leave out the last steps of episodes that did not terminate, with prepare.cutOffSteps: Drop, or take zeros, with "
    "ignoreFinalObservation: true"
)


def assemble(steps: Steps, rules: Rules) -> tuple[Block | None, Findings]:
    """Complete episodes of all their rows in stored order, with what was found; no block where none is left.

    Raises:
        DataError: rows that do not form complete episodes under the rules.
    """
    steps = _with_final(steps, rules)
    order = order_rows(steps, rules)
    unfinished = _unfinished(steps, order, rules)
    found = {**order.findings, **_ends(steps, order, unfinished, rules)}
    index, begins, t = order.index, order.is_start, order.t
    if rules.spec.unfinished == "Drop":
        kept = ~np.isin(steps.episode[index], unfinished)
        index, begins, t = index[kept], begins[kept], t[kept]
    if "time" in order.orders and len(index):
        unlike = np.append(False, ~begins[1:] & ~follows(steps, index[:-1], index[1:]))
        if unlike.any():
            found["unlike"] = rules.finding(steps, np.sort(index[unlike]))
    final = _without_next(steps, index, np.append(begins[1:], True)[: len(index)], rules)
    unknown = final & ~steps.terminated[index] & (rules.spec.cut_off_steps == "Drop")
    found |= _final_found(steps, index[final & ~unknown], index[unknown], rules)
    if unknown.any():
        follower = np.flatnonzero(unknown & ~begins)  # of a row of the same episode
        steps = _shortened(steps, index[follower - 1], index[follower])
        index, begins, t = index[~unknown], begins[~unknown], t[~unknown]
    if not len(index):
        return None, Findings(rows=len(steps), orders=order.orders, found=found)
    starts = np.flatnonzero(begins)
    length = np.diff(np.append(starts, len(index)))
    last = index[starts + length - 1]
    frame = Block(
        columns={},
        length=length,
        eps_id=steps.episode_ids[steps.episode[index[starts]]],
        t_started=t[starts],
        terminated=steps.terminated[last],
        truncated=steps.truncated[last],
    )
    columns = _columns(steps, index, last, frame)
    details = None
    if Columns.INFOS in steps.columns:
        texts, details = _infos(steps.columns[Columns.INFOS][index], steps, index, frame, rules)
        columns[Columns.INFOS] = texts
    details = _with_actors(details, steps, index[starts])
    block = replace(frame, columns=columns, details=details)
    return block, Findings(
        rows=len(steps),
        episodes=block.num_episodes,
        timesteps=block.num_steps,
        orders=order.orders,
        found=found,
    )


def read_exported_file(location: Location, layout: str) -> Block:
    """All episodes of a file in an exported layout, in its order.

    Raises:
        DataError: it is damaged.
        StorageError: it cannot be read.
    """
    form, options = FORMATS["Parquet" if layout == COLUMNS_LAYOUT else layout], ReadOptions()
    pieces = form.pieces(location, options)
    steps = [
        Steps.from_rows(rows, number)
        for number, piece in enumerate(pieces)
        for rows in form.read(piece, options)
        if isinstance(rows, Rows)
    ]
    paths = [str(location)] * len(pieces)
    block, _ = assemble(Steps.concat(steps, paths), Rules(PrepareSpec(), paths))
    if block is None:
        raise DataError(f"{location} holds no episodes")
    return block


def _ends(steps: Steps, order: RowOrder, unfinished: I64, rules: Rules) -> dict[Kind, Any]:
    if not len(unfinished):
        return {}
    heads = order.index[np.append(True, np.diff(steps.episode[order.index]) != 0)]
    heads = np.sort(heads[np.isin(steps.episode[heads], unfinished)])
    if rules.spec.unfinished == "Refuse":
        raise rules.row_error(
            steps, int(heads[0]), "it ends neither terminated nor truncated, and prepare.unfinished is Refuse"
        )
    if rules.spec.unfinished == "Keep":
        return {"unfinished": rules.finding(steps, heads)}
    return {"dropped": rules.finding(steps, np.isin(steps.episode, unfinished))}


def _unfinished(steps: Steps, order: RowOrder, rules: Rules) -> I64:
    """Episodes whose last row neither terminates nor truncates them; under a filter every cut makes such pieces."""
    if rules.is_filtered:
        return np.zeros(0, dtype=np.int64)
    episode = steps.episode[order.index]
    last = order.index[np.append(episode[1:] != episode[:-1], True)]
    return steps.episode[last[~steps.is_end[last]]]


def _without_next(steps: Steps, index: I64, last: Bool, rules: Rules) -> Bool:
    """`[K]` rows in order that are the last of a piece, and whose next observation is not in the data.

    Raises:
        DataError: another row has none, or the rules spare none.
    """
    if not has_next_obs(steps):
        return last
    missing = steps.next_missing[index]
    for rows, where, way_out in (
        (missing & ~last, "in a row that does not end its episode", ", or flag the end"),
        (missing & (not rules.can_lack_final_obs), "where its episode ends", f"; or {_FINAL_CHOICES}"),
    ):
        if rows.any():
            raise rules.row_error(
                steps, int(index[rows].min()), f"'new_obs' is null {where}: fill it{way_out}"
            )
    return missing


def _final_found(steps: Steps, zeros: I64, left_out: I64, rules: Rules) -> dict[Kind, Any]:
    """What is done with episodes' last rows, where the observation after them is not in the data."""
    rows: dict[Kind, I64] = {"zeros": zeros, "cut_off": left_out}
    return {kind: rules.finding(steps, np.sort(found)) for kind, found in rows.items() if len(found)}


def _shortened(steps: Steps, before: I64, left_out: I64) -> Steps:
    """Steps in which rows end their episodes in place of those after them, which are left out.

    Their next observations are those rows' observations, and they are cut off as those were. Where the data have no
    next observations, all others that end an episode terminated it: theirs are zeros.
    """
    truncated = steps.truncated.copy()
    truncated[before] = steps.truncated[left_out]
    columns = dict(steps.columns)
    for name in leaves_of(Columns.OBS, steps.columns):
        now = steps.columns[name]
        known = steps.columns.get(next_leaf(name))
        then = np.full_like(now, "" if now.dtype == object else 0) if known is None else known.copy()
        columns[next_leaf(name)] = then
        then[before] = now[left_out]
    return replace(steps, columns=columns, truncated=truncated)


def _with_final(steps: Steps, rules: Rules) -> Steps:
    """The steps, checked to have next observations of the same shape if they have any, in one dtype.

    Raises:
        DataError: there are none, and they are required; or their dtype or shape differs.
    """
    names = leaves_of(Columns.OBS, steps.columns)
    if not names:
        raise rules.input_error(
            steps, f"there is no 'obs': found {sorted(steps.columns)}; name it by `schema`"
        )
    if not has_next_obs(steps):
        if rules.can_lack_final_obs:
            return steps
        raise rules.input_error(
            steps,
            "there is no 'new_obs', so the observation after an episode's last row is not in the data; name its "
            f"column by `schema`; or {_FINAL_CHOICES}",
        )
    columns = dict(steps.columns)
    for name in names:
        now, then = columns[name], columns.get(next_leaf(name))
        if then is None or then.shape != now.shape or (then.dtype == object) != (now.dtype == object):
            raise rules.input_error(
                steps, f"{next_leaf(name)!r} is unlike {name!r}: both must have one dtype and one shape"
            )
        if then.dtype != now.dtype:
            common = np.result_type(now, then)
            columns[name], columns[next_leaf(name)] = now.astype(common), then.astype(common)
    return replace(steps, columns=columns)


def _columns(steps: Steps, index: I64, last: I64, frame: Block) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for name, column in steps.columns.items():
        if root(name) == Columns.OBS:
            columns[name] = _observations(column, steps.columns.get(next_leaf(name)), index, last, frame)
        elif root(name) not in (Columns.NEXT_OBS, Columns.INFOS, *ACTOR_COLUMNS):
            columns[name] = column[index]
    return columns


def _with_actors(details: NDArray[np.object_] | None, steps: Steps, first: I64) -> NDArray[np.object_] | None:
    """The details; of episodes that have none, who acted in their first rows."""
    actors = {name: steps.columns[name][first].tolist() for name in ACTOR_COLUMNS if name in steps.columns}
    if not actors:
        return details
    texts = [
        to_text(**{name: text or None for name, text in zip(actors, own, strict=True)})
        for own in zip(*actors.values(), strict=True)
    ]
    if details is not None:
        texts = [str(own) or text for own, text in zip(details, texts, strict=True)]
    return np.array(texts, dtype=object) if any(texts) else None


def _observations(
    now: NDArray[Any], then: NDArray[Any] | None, index: I64, last: I64, frame: Block
) -> NDArray[Any]:
    out = np.zeros((len(index) + frame.num_episodes, *now.shape[1:]), dtype=now.dtype)
    out[frame.obs_row] = now[index]
    final = frame.obs_start + frame.length
    if then is not None:
        out[final] = then[last]
    elif now.dtype == object:
        out[final] = ""
    return out


def _infos(
    cells: NDArray[Any], steps: Steps, index: I64, frame: Block, rules: Rules
) -> tuple[NDArray[np.object_], NDArray[np.object_] | None]:
    try:
        return infos.decode_cells(cells, frame)
    except CellError as error:
        raise rules.row_error(steps, int(index[error.row]), str(error)) from error
