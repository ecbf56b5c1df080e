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
from hindcast.episodes.details import NO_DETAILS
from hindcast.formats.layout import LEAVE_OUT_ADVICE, CellError

RESET: Final = '{"reset_info":'
_DETAILS: Final = f'{{"{DETAILS}":'


def prepend_entry(head: str, entry: str, own: str) -> str:
    """A cell with an entry before its own.

    Args:
        head: `RESET`, or another way in which a cell with that entry begins.
        entry: JSON of a dict; empty text is an empty one.
        own: the cell without it.
    """
    if not entry and not own.startswith(head):
        return own
    return f"{head}{entry or '{}'}" + (f",{own[1:]}" if own else "}")


def split_entry(head: str, cell: str) -> tuple[str, str]:
    """The inverse of `with_entry`: the entry, and the cell without it."""
    if not cell.startswith(head):
        return "", cell
    first, end = json.JSONDecoder().raw_decode(cell, len(head))
    own = f"{{{cell[end + 1 :]}" if cell[end] == "," else ""
    return ("" if first == {} else cell[len(head) : end]), own


def has_infos_or_details(block: Block) -> bool:
    """Whether there is anything to write in cells."""
    texts = block.columns.get(Columns.INFOS)
    has_infos = texts is not None and bool(((texts != "") & (texts != EMPTY_INFO)).any())
    return has_infos or (block.details is not None and bool(block.details.any()))


def info_cells(block: Block) -> NDArray[np.object_] | None:
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
        cells[start] = prepend_entry(RESET, str(firsts[i]), str(cells[start]))
        details = NO_DETAILS if block.details is None else block.details[i]
        cells[start] = prepend_entry(_DETAILS, details, cells[start])
    return cells if cells.any() else None


def encode_info(info: Any, row: int) -> str:
    """The JSON text of an info: of a dict, or text already; empty if there is none.

    Raises:
        CellError: it is something else.
    """
    if info is None or info == {}:
        return ""
    if isinstance(info, str):
        return info
    if not isinstance(info, dict):
        raise CellError(row, f"its info is {info!r}: expected a dict, or its JSON text")
    return info_to_json(info)


def encode_infos(column: pa.ChunkedArray) -> NDArray[np.object_]:
    """`[S]` JSON texts of structs, whose nulls are entries that are not there."""
    infos = map(_without_nulls, column.to_pylist())
    return np.array([encode_info(info, row) for row, info in enumerate(infos)], dtype=object)


def _without_nulls(info: Any) -> Any:
    return {key: part for key, part in info.items() if part is not None} if isinstance(info, dict) else info


def check_infos(texts: NDArray[np.object_]) -> None:
    """Make sure that texts are JSON.

    Raises:
        CellError: one that is not, or is not of a dict.
    """
    for row, text in enumerate(texts.tolist()):
        try:
            info_from_json(text)
        except (ValueError, TypeError) as error:
            raise CellError(row, f"'infos' is not the JSON of a dict: {error}; {LEAVE_OUT_ADVICE}") from error


def clear_repeated_infos(texts: NDArray[np.object_], begins: NDArray[np.bool_]) -> NDArray[np.object_]:
    """The texts; rows that begin a fragment no longer repeat the info of the row before.

    Args:
        texts: `[S]`.
        begins: `[S]` rows at which a fragment continues an episode.
    """
    texts = texts.copy()
    for row in np.flatnonzero(begins).tolist():
        _, cell = split_entry(_DETAILS, texts[row])
        _, texts[row] = split_entry(RESET, cell)
    return texts


def decode_cells(
    cells: NDArray[np.object_], block: Block
) -> tuple[NDArray[np.object_], NDArray[np.object_] | None]:
    """`[O]` infos of the block's observations, and `[N]` details of its episodes (None if none has any)."""
    infos = np.full(block.num_steps + block.num_episodes, "", dtype=object)
    details = np.full(block.num_episodes, NO_DETAILS, dtype=object)
    infos[block.obs_row + 1] = cells
    for i, (start, first) in enumerate(zip(block.start.tolist(), block.obs_start.tolist(), strict=True)):
        try:
            details[i], cell = split_entry(_DETAILS, str(cells[start]))
            infos[first], infos[first + 1] = split_entry(RESET, cell)
        except (ValueError, IndexError) as error:
            raise CellError(start, f"'infos' is not JSON: {error}") from error
    return infos, details if details.any() else None
