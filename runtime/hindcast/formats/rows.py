"""`Rows`: timesteps as a foreign file holds them, in stored order. Shape suffix: R = rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import SCALAR_COLUMNS, Columns

Timesteps = NDArray[Any]
"""int64, which counts them from 0, or datetime64, which only orders them."""
ACTOR_COLUMNS: Final = (Columns.AGENT_ID, Columns.MODULE_ID)
"""Columns that say who acted; they become part of an episode's details."""
_PER_ROW: Final = ("terminated", "truncated", "next_missing", "row", "eps_id", "t")


@dataclass(frozen=True, eq=False)
class Rows:
    """Timesteps of one file, one array per leaf, in stored order.

    Attributes:
        columns: leaf name -> `[R, *shape]`: the leaves of `obs`, `actions`, `rewards`, every other column as an
            output of the model, and, where the data have them, `new_obs` (the same leaves as `obs`), `infos`
            (JSON text), `agent_id` and `module_id`. Text and JSON leaves are object arrays of `str`.
        terminated: `[R]` whether the environment ended the episode with this step.
        truncated: `[R]` whether the episode was cut off after this step.
        next_missing: `[R]` whether the data have next observations, but not this row's; zeros are there instead.
        path: the file, as the user would write it.
        row: `[R]` each row's number in its file, counted from 0.
        eps_id: `[R]` object array of `str`; None if the data do not say.
        t: `[R]` timestep in the episode; None if the data do not say.
    """

    columns: dict[str, NDArray]
    terminated: Bool
    truncated: Bool
    next_missing: Bool
    path: str
    row: I64
    eps_id: NDArray[np.object_] | None = None
    t: Timesteps | None = None

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: I64 | Bool) -> Rows:
        """The rows at an index or under a mask."""
        per_row = {name: getattr(self, name) for name in _PER_ROW}
        kept: dict[str, Any] = {
            name: None if array is None else array[index] for name, array in per_row.items()
        }
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, columns=columns, **kept)

    def squeeze_scalars(self) -> Rows:
        """`[R]` rewards and log-probabilities where they are stored as lists of one number, `[R, 1]`."""
        lists = {name: self.columns[name] for name in SCALAR_COLUMNS if name in self.columns}
        numbers = {name: column[:, 0] for name, column in lists.items() if column.shape[1:] == (1,)}
        return replace(self, columns=self.columns | numbers) if numbers else self

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all parts, in order; they are of one file and have the same columns."""
        joined: dict[str, Any] = {name: _joined([getattr(part, name) for part in parts]) for name in _PER_ROW}
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        return cls(columns, path=parts[0].path, **joined)


def _joined(arrays: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    found = [array for array in arrays if array is not None]
    return np.concatenate(found) if found else None
