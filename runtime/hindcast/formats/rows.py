"""`Rows`: timesteps as a foreign file holds them, in stored order. Shape suffix: R = rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns

ACTORS: Final = (Columns.AGENT_ID, Columns.MODULE_ID)
"""Columns of who acted, which become a part of what episodes carry beside their steps."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Timesteps of one file, one array per leaf; nothing is said of which follow each other.

    Attributes:
        columns: leaf name -> `[R, *shape]`: the leaves of `obs`, `actions`, `rewards`, every other column as an
            output of the model, and, where the data have them, `new_obs` (the same leaves as `obs`), `infos`
            (JSON text), `agent_id` and `module_id`. Text and JSON leaves are object arrays of `str`.
        terminated: `[R]` whether the environment ended the episode with this step.
        truncated: `[R]` whether the episode was cut off after this step.
        path: the file, as the user would write it.
        row: `[R]` each row's number in its file, counted from 0.
        eps_id: `[R]` object array of `str`; None where the data do not say.
        t: `[R]` timestep in the episode; None where the data do not say.
    """

    columns: dict[str, NDArray]
    terminated: Bool
    truncated: Bool
    path: str
    row: I64
    eps_id: NDArray[np.object_] | None = None
    t: I64 | None = None

    def __len__(self) -> int:
        return len(self.row)
