"""`Rows`: the timesteps of a file that is not opened directly, in stored order. Shape suffix: R = rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import SCALAR_COLUMNS, Columns

Timesteps = NDArray[Any]
"""int64 timesteps, counted from 0 at the start of an episode, or datetime64 times, which only order the rows."""
AGENT_COLUMNS: Final = (Columns.AGENT_ID, Columns.MODULE_ID)
"""Columns with the ids of the agent and the module that acted; the ids become part of an episode's details."""
_ROW_ARRAYS: Final = ("terminated", "truncated", "next_missing", "row", "eps_id", "t", "is_obs_only")


@dataclass(frozen=True, eq=False)
class Rows:
    """Timesteps of one file, one array per leaf, in stored order.

    Attributes:
        columns: leaf name -> `[R, *shape]`: the leaves of `obs`, `actions` and `rewards`; if the data have them, also
            `new_obs` (with the same leaves as `obs`), `infos` (JSON text), `agent_id` and `module_id`; and all other
            columns, as outputs of the model. Text and JSON leaves are object arrays of `str`.
        terminated: `[R]` whether the environment ended the episode with this step.
        truncated: `[R]` whether the episode was cut off after this step.
        next_missing: `[R]` whether a row has no next observation although the data have next observations; `new_obs`
            repeats `obs` there.
        path: the file, as the user wrote it.
        row: `[R]` index of each row in the file.
        eps_id: `[R]` episode ids, object array of `str`; None if the data have no ids.
        t: `[R]` timestep in the episode, or time; None if the data have neither.
        is_obs_only: `[R]` whether a row holds only the observation after its episode's last timestep, and the flags
            of that timestep; None if no row does.
        left_out: name of a column that is left out, because it cannot be read and nothing requires it -> the reason.
        names: leaf -> the names of its elements, such as columns of a table; leaves without names are left out.
        has_zone: whether the times of rows, in `t` or in the column of times, have a zone; they are then in UTC. None
            if there are no dates or times.
    """

    columns: dict[str, NDArray]
    terminated: Bool
    truncated: Bool
    next_missing: Bool
    path: str
    row: I64
    eps_id: NDArray[np.object_] | None = None
    t: Timesteps | None = None
    is_obs_only: Bool | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_zone: bool | None = None

    def __len__(self) -> int:
        return len(self.row)

    def with_ids(self) -> Rows:
        """Return the rows with ids; rows without ids get the id "" until their episodes are named."""
        return self if self.eps_id is not None else replace(self, eps_id=np.full(len(self), "", dtype=object))

    def take(self, index: I64 | Bool) -> Rows:
        """Return the rows that an index array or a mask selects."""
        per_row = {name: getattr(self, name) for name in _ROW_ARRAYS}
        row_arrays: dict[str, Any] = {
            name: None if array is None else array[index] for name, array in per_row.items()
        }
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, columns=columns, **row_arrays)

    def squeeze_scalars(self) -> Rows:
        """Return the rows with rewards and log-probabilities as `[R]`, even if stored as `[R, 1]`."""
        stored_columns = {name: self.columns[name] for name in SCALAR_COLUMNS if name in self.columns}
        scalars = {name: column[:, 0] for name, column in stored_columns.items() if column.shape[1:] == (1,)}
        return replace(self, columns=self.columns | scalars) if scalars else self

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate parts of one file that have the same columns, in order."""
        row_arrays: dict[str, Any] = {
            name: _concat_optional([getattr(part, name) for part in parts]) for name in _ROW_ARRAYS
        }
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
        return cls(columns, path=parts[0].path, has_zone=parts[0].has_zone, **row_arrays)


def _concat_optional(arrays: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Concatenate arrays; None if all are None: of the parts of one file, either all have an array or none has it."""
    present_arrays = [array for array in arrays if array is not None]
    return np.concatenate(present_arrays) if present_arrays else None
