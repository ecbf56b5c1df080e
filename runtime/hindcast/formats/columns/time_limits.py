"""What the infos of Gym's older interface say of an episode that is over: the environment ended it, or a time limit."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hindcast.episodes.block import Bool
from hindcast.formats.layout import CellError

_TIME_LIMIT: Final = "TimeLimit.truncated"


def ends_by_infos(over: Bool, infos: pa.ChunkedArray) -> tuple[Bool, Bool]:
    """`[R]` each: where the environment ended an episode, and where a time limit did.

    Args:
        over: `[R]` where an episode is over; only there the infos are looked at.
        infos: dicts, or their JSON text.

    Raises:
        CellError: an info that is not JSON.
    """
    cut = np.zeros(len(over), dtype=np.bool_)
    for row in np.flatnonzero(over).tolist():
        cut[row] = _says_cut(infos[row].as_py(), row)
    return over & ~cut, cut


def _says_cut(info: Any, row: int) -> bool:
    if isinstance(info, str):
        if _TIME_LIMIT not in info:
            return False
        try:
            info = json.loads(info)
        except ValueError as error:
            raise CellError(row, f"its info is not JSON: {error}") from error
    return isinstance(info, dict) and bool(info.get(_TIME_LIMIT))
