"""What an algorithm needs of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hindcast.episodes.columns import Columns, root

_DERIVED: Final[dict[str, frozenset[str]]] = {
    Columns.NEXT_OBS: frozenset({Columns.OBS}),
    Columns.TERMINATEDS: frozenset(),
    Columns.TRUNCATEDS: frozenset(),
    Columns.DISCOUNTS: frozenset(),
    Columns.N_STEP: frozenset(),
}
"""Columns that are made of other columns, and of where episodes end."""
_FLAGS: Final = frozenset({Columns.TERMINATEDS, Columns.TRUNCATEDS})


@dataclass(frozen=True)
class Needs:
    """The columns of a batch and how its items are cut from episodes.

    An *item* is what a batch is made of and what the cursor counts: a timestep t with what follows it.

    With `n_step` = n an item covers n' = min(n, steps left of the episode or fragment) steps. Then `rewards` is
    Σₖ gammaᵏ·r(t+k) over k < n' (float32, summed in float64), `new_obs` is o(t+n'), and `terminateds` and `truncateds` are
    those of step t+n'-1. The columns `discounts` (float32: gamma^n', 0 where step t+n'-1 terminated, so that
    `rewards + discounts * V(new_obs)` bootstraps from truncated and unfinished episodes, and not from terminated ones)
    and `n_step` (int64: n') can be asked for, whatever n is. With n = 1 `rewards` keep their dtype.

    Attributes:
        columns: names of whole columns (`obs`, `new_obs`, `actions`, `action_logp` …); a composite column
            comes with all its leaves.
        n_step: n, at least 1.
        gamma: discount, from 0 to 1; `discounts` and an `n_step` over 1 need it.
        targets: whether the algorithm computes further columns over whole episodes when a window is entered.

    Raises:
        ValueError: a value is not possible.
    """

    columns: frozenset[str]
    n_step: int = 1
    gamma: float | None = None
    targets: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not possible."""
        if self.n_step < 1:
            raise ValueError(f"n_step is {self.n_step}; it must be at least 1")
        if self.gamma is None and (self.n_step > 1 or Columns.DISCOUNTS in self.columns):
            raise ValueError("n-step returns and discounts need gamma")
        if self.gamma is not None and not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma}; it must lie between 0 and 1")

    @property
    def stored(self) -> frozenset[str]:
        """The columns to read from storage: those that are made of others are not among them."""
        parts = (_DERIVED.get(root(column), frozenset({column})) for column in self.columns)
        return frozenset().union(*parts)

    @property
    def kept(self) -> frozenset[str]:
        """The columns that a window holds, of which items are cut."""
        return self.stored | (self.columns & _FLAGS)

    @property
    def derived_bytes(self) -> int:
        """Bytes a step on the device of what n-step items are gathered from, beside the columns themselves."""
        asked = self.columns & {Columns.DISCOUNTS, Columns.N_STEP}
        return 16 if self.n_step > 1 or asked else 0

    def with_columns(self, columns: frozenset[str]) -> Needs:
        """The same needs with further columns."""
        return replace(self, columns=self.columns | columns)
