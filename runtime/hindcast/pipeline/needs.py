"""What an algorithm needs of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError

_DERIVED: Final[dict[str, frozenset[str]]] = {
    Columns.NEXT_OBS: frozenset({Columns.OBS}),
    Columns.NEXT_ACTIONS: frozenset({Columns.ACTIONS}),
    Columns.TERMINATEDS: frozenset(),
    Columns.TRUNCATEDS: frozenset(),
    Columns.DISCOUNTS: frozenset(),
    Columns.N_STEP: frozenset(),
    Columns.T: frozenset(),
}
"""Columns that are made of other columns, and of where episodes end."""
STATES: Final = (Columns.STATE_IN, Columns.STATE_OUT)
"""Columns that initial states are read from, the better one first."""
_SAMPLED_BYTES: Final = {"epochs": 0, "uniform": 1, "prioritized": 6}
"""Bytes per item in addition to the data: whether it was drawn, its priority and its part of sums."""
_FLAGS: Final = frozenset({Columns.TERMINATEDS, Columns.TRUNCATEDS})


@dataclass(frozen=True)
class Needs:
    """The columns of a batch and how its items are cut from episodes.

    An *item* is what a batch is made of and what the cursor counts: a timestep with what follows it, or a sequence.

    With `n_step` = n a timestep t covers n' = min(n, steps left of the episode or fragment) steps. Then `rewards` is
    Σₖ gammaᵏ·r(t+k) over k < n' (float32, summed in float64), `new_obs` is o(t+n'), and `terminateds` and
    `truncateds` are those of step t+n'-1. With n = 1 `rewards` keep their dtype. Further columns can be asked for,
    whatever n is: `discounts` (float32: gamma^n', 0 where step t+n'-1 terminated, so that
    `rewards + discounts * V(new_obs)` bootstraps from truncated and unfinished episodes, and not from terminated
    ones), `n_step` (int64: n') and `t` (int64: the timestep's number in its episode). `new_actions` is a(t+n'), and
    brings `followed` along (bool): whether step t+n' is of the same episode or fragment. Where it is not, nothing was
    recorded, and `new_actions` repeats a(t), which is only there to have a value of the space.

    With `seq_len` = T an item is T adjacent steps of one episode, and the leaves are `[B, T, ...]`. Sequences begin at
    an episode's steps 0, T - burn_in, 2·(T - burn_in) and so on: each repeats the last `burn_in` steps of the one
    before to warm up a recurrent state, and an epoch learns from each timestep once. Steps after the end of an
    episode are zero. Batches also hold `loss_mask`, `[B, T]` bool: whether to learn from the step, which is neither
    burn-in nor padding; and `seq_lens`, `[B]` int64: the steps before the padding. A batch of
    `trainBatchSizePerLearner` timesteps has a T-th as many sequences (rounded down): burn-in and padding count. n-step
    columns reach behind a sequence's end. With `stride` = s they begin at an episode's steps 0, s, 2·s and so on to its
    last, so that the last ones are shorter, and an epoch learns from a timestep up to T / s times.

    With `sampling` "epochs" each pass takes every item once. "uniform" and "prioritized" draw each item from all data,
    with replacement, which takes data that are resident. Drawn by priority (Schaul et al. 2015, arXiv 1511.05952),
    item i has the chance P(i) = pᵢ^alpha / Σ pₖ^alpha; batches hold `weights`, `[B]` float32: (N·P(i))^-beta over the
    greatest such weight of all N items. pᵢ is 1 at first and then what the algorithm's losses gave for it last
    (`Losses.priorities`). Of a beta that grows, b, the weights are `weights ** (b / beta)`.

    Attributes:
        columns: names of whole columns (`obs`, `new_obs`, `actions`, `action_logp` …); a composite column
            comes with all its leaves.
        n_step: n, at least 1.
        seq_len: T; None for single timesteps.
        burn_in: see above, less than T.
        stride: s, from 1 to T and without burn-in; None for T - burn_in.
        initial_state: "recorded" adds to a batch of sequences the leaves `state_in/…`, `[B, ...]`, the recurrent state
            before each one's first step: `state_in` as stored, or else `state_out` of the step before, which is zero
            before an episode's first. "zero": the module begins with its own.
        gamma: discount, from 0 to 1; `discounts` and an `n_step` over 1 need it.
        targets: whether the algorithm computes further columns over complete episodes (`Algorithm.targets`), when a
            window is entered.
        targets_every: updates after which they are recomputed while the window is in use; None never does.
        sampling: see above. Targets are of windows, which only "epochs" has.
        alpha: of "prioritized", at least 0: how much priorities count.
        beta: of "prioritized", at least 0: how much of the bias the weights take back; 1 is all of it.

    Raises:
        ValueError: a value is not possible.
    """

    columns: frozenset[str]
    n_step: int = 1
    gamma: float | None = None
    seq_len: int | None = None
    burn_in: int = 0
    stride: int | None = None
    initial_state: Literal["zero", "recorded"] = "zero"
    targets: bool = False
    targets_every: int | None = None
    sampling: Literal["epochs", "uniform", "prioritized"] = "epochs"
    alpha: float = 0.6
    beta: float = 0.4

    def __post_init__(self) -> None:
        """Refuse what is not possible."""
        if self.n_step < 1:
            raise ValueError(f"n_step is {self.n_step}; it must be at least 1")
        if self.gamma is None and (self.n_step > 1 or Columns.DISCOUNTS in self.columns):
            raise ValueError("n-step returns and discounts need gamma")
        if self.gamma is not None and not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma}; it must be between 0 and 1")
        if self.targets_every is not None and not (self.targets and self.targets_every >= 1):
            raise ValueError(
                f"targets_every is {self.targets_every}; it must be at least 1, and there must be targets"
            )
        self._check_sequences()
        self._check_sampling()

    def _check_sampling(self) -> None:
        if self.sampling not in _SAMPLED_BYTES:
            raise ValueError(
                f"sampling is {self.sampling!r}; it must be one of {', '.join(map(repr, _SAMPLED_BYTES))}"
            )
        if self.targets and self.sampling != "epochs":
            raise ValueError(f"sampling is {self.sampling!r}, and targets are of windows: take 'epochs'")
        if self.alpha < 0 or self.beta < 0:
            raise ValueError(f"alpha is {self.alpha} and beta {self.beta}; both must be at least 0")
        if self.sampling == "prioritized" and Columns.WEIGHTS in self.columns:
            raise ValueError(
                "the column 'weights' is that of the priorities' weights where sampling is by priority"
            )

    def _check_sequences(self) -> None:
        if self.seq_len is None:
            if self.burn_in or self.stride is not None or self.initial_state == "recorded":
                raise ValueError("burn_in, stride and initial_state are of sequences: give seq_len")
            return
        if self.seq_len < 1:
            raise ValueError(f"seq_len is {self.seq_len}; it must be at least 1")
        if not 0 <= self.burn_in < self.seq_len:
            raise ValueError(
                f"burn_in is {self.burn_in}; it must be between 0 and seq_len - 1, {self.seq_len - 1}"
            )
        if self.stride is not None and (self.burn_in or not 1 <= self.stride <= self.seq_len):
            raise ValueError(
                f"stride is {self.stride}; it must be between 1 and seq_len, {self.seq_len}, without burn_in"
            )

    @property
    def timesteps_per_item(self) -> int:
        """How many timesteps an item counts for in a batch."""
        return self.seq_len or 1

    @property
    def stored_columns(self) -> frozenset[str]:
        """The columns to read from storage: those that are made of others are not among them."""
        parts = (_DERIVED.get(root(column), frozenset({column})) for column in self.columns)
        return frozenset().union(*parts)

    @property
    def window_columns(self) -> frozenset[str]:
        """The columns that a window holds, from which items are cut."""
        return self.stored_columns | (self.columns & _FLAGS)

    @property
    def extra_bytes_per_step(self) -> int:
        """Bytes per step on the device without the columns: what n-step items are gathered from, and priorities."""
        asked = self.columns & {Columns.DISCOUNTS, Columns.N_STEP}
        followed = Columns.NEXT_ACTIONS in self.columns
        return (16 if self.n_step > 1 or asked else 0) + followed + _SAMPLED_BYTES[self.sampling]

    def with_state_column(self, columns: frozenset[str]) -> Needs:
        """The same needs, with the column that initial states are read from.

        Args:
            columns: whole columns that the data have.

        Raises:
            DataError: recorded states are needed, and none are there.
        """
        if self.initial_state == "zero":
            return self
        name = next((name for name in STATES if name in columns), None)
        if name is None:
            raise DataError(
                "The algorithm needs recorded recurrent states (state_in or state_out); the data have none."
            )
        return self.with_columns(frozenset({name}))

    def with_columns(self, columns: frozenset[str]) -> Needs:
        """The same needs with further columns."""
        return replace(self, columns=self.columns | columns)


def transitions(gamma: float, **more: Any) -> Needs:
    """What temporal differences take: observations, actions, rewards, next observations and their discounts.

    Args:
        gamma: discount.
        more: further fields of `Needs`.
    """
    names = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.DISCOUNTS)
    return Needs(columns=frozenset(names), gamma=gamma, **more)
