"""What an algorithm needs of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hindcast.episodes.columns import Columns, root


@dataclass(frozen=True)
class Needs:
    """The columns of a batch and how its items are cut from episodes.

    An *item* is what a batch is made of and what the cursor counts: one timestep.

    Attributes:
        columns: names of whole columns (`obs`, `new_obs`, `actions`, `action_logp` …); a composite column
            comes with all its leaves.
        targets: whether the algorithm computes further columns over whole episodes when a window is entered.
        seq_len: timesteps per item; only 1 so far.
        burn_in: timesteps before an item that only warm up a recurrent state.
        n_step: rewards summed per step of an item; only 1 so far.
    """

    columns: frozenset[str]
    targets: bool = False
    seq_len: int = 1
    burn_in: int = 0
    n_step: int = 1

    def __post_init__(self) -> None:
        """Refuse what no feed can deliver yet."""
        if (self.seq_len, self.burn_in, self.n_step) != (1, 0, 1):
            raise NotImplementedError("feeds deliver single timesteps: seq_len=1, burn_in=0, n_step=1")

    @property
    def stored(self) -> frozenset[str]:
        """The columns to read from storage: next observations and episode flags are not among them."""
        derived = {Columns.NEXT_OBS: Columns.OBS, Columns.TERMINATEDS: None, Columns.TRUNCATEDS: None}
        names = (derived.get(root(column), column) for column in self.columns)
        return frozenset(name for name in names if name is not None)

    def with_columns(self, columns: frozenset[str]) -> Needs:
        """The same needs with further columns."""
        return replace(self, columns=self.columns | columns)
