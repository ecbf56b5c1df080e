"""The infos of an episode in a column with one cell per step.

A step's cell is the info that came with its reward. What came with the episode's first observation is in the
first step's cell, as `reset_info` before the step's own entries, and before it, as `episode_details`, what the
episode holds in addition to its steps.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import DETAILS, EMPTY_INFO, Columns
from hindcast.episodes.convert import info_from_json, info_to_json
from hindcast.episodes.details import NOTHING
from hindcast.formats.layout import LEAVE_OUT, CellError

_RESET: Final = '{"reset_info":'
_DETAILS: Final = f'{{"{DETAILS}":'


def with_reset(reset: str, own: str) -> str:
    """The cell of an episode's first step; empty text is an empty info."""
    return _with(_RESET, reset, own)


def without_reset(cell: str) -> tuple[str, str]:
    """The inverse of `with_reset`: the two infos."""
    return _without(_RESET, cell)


def has_infos_or_details(block: Block) -> bool:
    """Whether there is anything to write in cells."""
    texts = block.columns.get(Columns.INFOS)
    has_infos = texts is not None and bool(((texts != "") & (texts != EMPTY_INFO)).any())
    return has_infos or (block.details is not None and bool(block.details.any()))


def step_texts(block: Block) -> NDArray[np.object_] | None:
    """`[S]` the info that came with each step's next observation, empty if it is empty; None if all are.

    The first step's cell holds the reset's info too, and the episode's details.
    """
    texts = block.columns.get(Columns.INFOS)
    if (texts is None or not texts.any()) and block.details is None:
        return None
    if texts is None:
        texts = np.full(block.num_steps + block.num_episodes, "", dtype=object)
    texts = np.where(texts == EMPTY_INFO, "", texts)
    cells, firsts = texts[block.obs_row + 1], texts[block.obs_start]
    for i, start in enumerate(block.start.tolist()):
        cells[start] = with_reset(str(firsts[i]), str(cells[start]))
        cells[start] = _with(_DETAILS, NOTHING if block.details is None else block.details[i], cells[start])
    return cells if cells.any() else None


def texts_of(column: pa.ChunkedArray) -> NDArray[np.object_]:
    """`[S]` JSON texts: of cells that are text, or dicts; null is empty."""
    values = column.to_pylist()
    return np.array([_text(row, value) for row, value in enumerate(values)], dtype=object)


def check_texts(texts: NDArray[np.object_]) -> None:
    """Make sure that texts are JSON.

    Raises:
        CellError: one that is not, or is not of a dict.
    """
    for row, text in enumerate(texts.tolist()):
        try:
            info_from_json(text)
        except (ValueError, TypeError) as error:
            raise CellError(row, f"'infos' is not the JSON of a dict: {error}; {LEAVE_OUT}") from error


def of_fragments(texts: NDArray[np.object_], begins: NDArray[np.bool_]) -> NDArray[np.object_]:
    """The texts; rows that begin a fragment no longer repeat the info of the row before.

    Args:
        texts: `[S]`.
        begins: `[S]` rows at which a fragment continues an episode.
    """
    texts = texts.copy()
    for row in np.flatnonzero(begins).tolist():
        _, cell = _without(_DETAILS, texts[row])
        texts[row] = without_reset(cell)[1]
    return texts


def per_observation(
    cells: NDArray[np.object_], block: Block
) -> tuple[NDArray[np.object_], NDArray[np.object_] | None]:
    """`[O]` infos of the block's observations, and `[N]` details of its episodes (None if none has any)."""
    infos = np.full(block.num_steps + block.num_episodes, "", dtype=object)
    details = np.full(block.num_episodes, NOTHING, dtype=object)
    infos[block.obs_row + 1] = cells
    for i, (start, first) in enumerate(zip(block.start.tolist(), block.obs_start.tolist(), strict=True)):
        try:
            details[i], cell = _without(_DETAILS, str(cells[start]))
            infos[first], infos[first + 1] = without_reset(cell)
        except (ValueError, IndexError) as error:
            raise CellError(start, f"'infos' is not JSON: {error}") from error
    return infos, details if details.any() else None


def _with(head: str, first: str, own: str) -> str:
    """A cell with an entry before its own."""
    if not first and not own.startswith(head):
        return own
    return f"{head}{first or '{}'}" + (f",{own[1:]}" if own else "}")


def _without(head: str, cell: str) -> tuple[str, str]:
    """The entry, and the cell without it."""
    if not cell.startswith(head):
        return "", cell
    first, end = json.JSONDecoder().raw_decode(cell, len(head))
    own = f"{{{cell[end + 1 :]}" if cell[end] == "," else ""
    return ("" if first == {} else cell[len(head) : end]), own


def _text(row: int, value: Any) -> str:
    if not value:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return info_to_json({key: part for key, part in value.items() if part is not None})
    raise CellError(row, f"'infos' holds {value!r}: expected a dict, or its JSON text")
