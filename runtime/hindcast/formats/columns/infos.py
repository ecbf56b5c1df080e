"""Infos of an episode in a column with one cell per step.

A step's cell is the info that came with the step's reward. In the first step's cell two entries come before the
info's own entries: `episode_details`, the episode's details, and `reset_info`, the info of the episode's first
observation.
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

RESET_HEAD: Final = '{"reset_info":'
_DETAILS_HEAD: Final = f'{{"{DETAILS}":'


def prepend_entry(head: str, entry: str, cell: str) -> str:
    """Return a cell with an entry before its own entries.

    Args:
        head: beginning of a cell that has the entry, such as `RESET_HEAD`.
        entry: JSON of a dict, or "" for an empty dict, which is left out. But if `cell` itself begins with `head`, an
            empty dict is written, too: otherwise `split_entry` would mistake an entry of the info for this entry.
        cell: the cell without the entry.
    """
    if not entry and not cell.startswith(head):
        return cell
    return f"{head}{entry or '{}'}" + (f",{cell[1:]}" if cell else "}")


def split_entry(head: str, cell: str) -> tuple[str, str]:
    """Split a cell into the entry at its beginning and the other entries: the inverse of `prepend_entry`.

    Returns:
        JSON of the entry, "" if the cell does not begin with `head` or the entry is an empty dict; and the cell without
        the entry.

    Raises:
        ValueError, IndexError: the cell is not JSON.
    """
    if not cell.startswith(head):
        return "", cell
    # raw_decode stops after the entry, so the text of the other entries stays as it is
    value, end = json.JSONDecoder().raw_decode(cell, len(head))
    remaining_cell = f"{{{cell[end + 1 :]}" if cell[end] == "," else ""
    return ("" if value == {} else cell[len(head) : end]), remaining_cell


def has_infos_or_details(block: Block) -> bool:
    """Return whether a block has details, or an info that is not empty."""
    texts = block.columns.get(Columns.INFOS)
    has_infos = texts is not None and bool(((texts != "") & (texts != EMPTY_INFO)).any())
    return has_infos or (block.details is not None and bool(block.details.any()))


def make_info_cells(block: Block) -> NDArray[np.object_] | None:
    """Make `[S]` cells of the infos that came with the steps' next observations, "" if empty; None if all are empty.

    The first step's cell also holds the info of the reset and the episode's details.
    """
    texts = block.columns.get(Columns.INFOS)
    if (texts is None or not texts.any()) and block.details is None:
        return None
    if texts is None:
        texts = np.full(block.num_steps + block.num_episodes, "", dtype=object)
    texts = np.where(texts == EMPTY_INFO, "", texts)
    cells, reset_texts = texts[block.obs_row + 1], texts[block.obs_start]
    for i, start in enumerate(block.start.tolist()):
        cells[start] = prepend_entry(RESET_HEAD, str(reset_texts[i]), str(cells[start]))
        details = NO_DETAILS if block.details is None else block.details[i]
        cells[start] = prepend_entry(_DETAILS_HEAD, details, cells[start])
    return cells if cells.any() else None


def encode_info(info: Any, row: int) -> str:
    """Return an info as JSON text; "" if it is empty. Text is returned as it is, without a check.

    Args:
        info: a dict, JSON text or None.
        row: row of the info, for the error.

    Raises:
        CellError: the info has another type.
    """
    if info is None or info == {}:
        return ""
    if isinstance(info, str):
        return info
    if not isinstance(info, dict):
        raise CellError(row, f"its info is {info!r}: expected a dict, or its JSON text")
    return info_to_json(info)


def encode_infos(column: pa.ChunkedArray) -> NDArray[np.object_]:
    """Return `[S]` JSON texts of a column of structs, without the entries that are null."""
    infos = map(_drop_nulls, column.to_pylist())
    return np.array([encode_info(info, row) for row, info in enumerate(infos)], dtype=object)


def _drop_nulls(info: Any) -> Any:
    return (
        {key: value for key, value in info.items() if value is not None} if isinstance(info, dict) else info
    )


def check_infos(texts: NDArray[np.object_]) -> None:
    """Check that each text is the JSON of a dict.

    Raises:
        CellError: a text is not the JSON of a dict.
    """
    for row, text in enumerate(texts.tolist()):
        try:
            info_from_json(text)
        except (ValueError, TypeError) as error:
            raise CellError(row, f"'infos' is not the JSON of a dict: {error}; {LEAVE_OUT_ADVICE}") from error


def clear_repeated_infos(
    texts: NDArray[np.object_], is_continuation: NDArray[np.bool_]
) -> NDArray[np.object_]:
    """Remove the reset's info and the details from rows at which a fragment continues an episode.

    A fragment's first observation, with its info, is also the last one of the fragment before.

    Args:
        texts: `[S]` info cells.
        is_continuation: `[S]` whether a fragment continues an episode at the row.
    """
    texts = texts.copy()
    for row in np.flatnonzero(is_continuation).tolist():
        _, cell = split_entry(_DETAILS_HEAD, texts[row])
        _, texts[row] = split_entry(RESET_HEAD, cell)
    return texts


def decode_info_cells(
    cells: NDArray[np.object_], block: Block
) -> tuple[NDArray[np.object_], NDArray[np.object_] | None]:
    """Decode `[S]` info cells into `[O]` infos of observations and `[N]` details of episodes (None if all are empty).

    Raises:
        CellError: a cell is not JSON.
    """
    infos = np.full(block.num_steps + block.num_episodes, "", dtype=object)
    details = np.full(block.num_episodes, NO_DETAILS, dtype=object)
    infos[block.obs_row + 1] = cells
    for i, (start, first_obs) in enumerate(zip(block.start.tolist(), block.obs_start.tolist(), strict=True)):
        try:
            details[i], cell = split_entry(_DETAILS_HEAD, str(cells[start]))
            infos[first_obs], infos[first_obs + 1] = split_entry(RESET_HEAD, cell)
        except (ValueError, IndexError) as error:
            raise CellError(start, f"'infos' is not JSON: {error}") from error
    return infos, details if details.any() else None
