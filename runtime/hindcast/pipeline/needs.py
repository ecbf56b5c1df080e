"""`Needs`: the columns and the sampling that an algorithm requires of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError

_SOURCE_COLUMNS: Final[dict[str, frozenset[str]]] = {
    Columns.NEXT_OBS: frozenset({Columns.OBS}),
    Columns.NEXT_ACTIONS: frozenset({Columns.ACTIONS}),
    Columns.TERMINATEDS: frozenset(),
    Columns.TRUNCATEDS: frozenset(),
    Columns.DISCOUNTS: frozenset(),
    Columns.N_STEP: frozenset(),
    Columns.MC_RETURNS: frozenset({Columns.REWARDS}),
    Columns.T: frozenset(),
}
"""Columns that are computed -> the stored columns from which they are computed, besides the ends of episodes."""
STATE_COLUMNS: Final = (Columns.STATE_IN, Columns.STATE_OUT)
"""Columns that contain initial states, the preferred one first."""
_SAMPLING_BYTES: Final = {"epochs": 0, "uniform": 1, "prioritized": 6}
"""Bytes per item in addition to the data: whether it was drawn, its priority, and its share of the sum tree."""
_EPISODE_COLUMNS: Final = frozenset({Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.MC_RETURNS})
"""Columns that are computed from whole episodes, before windows cut them."""


@dataclass(frozen=True)
class Needs:
    """The columns of a batch and how its items are cut from episodes.

    Batches consist of *items*, which the cursor counts: timesteps with the steps after them, or sequences.

    Data may have durations of steps (`delta_t`). Windows then contain them, batches do not. gammaᵏ below is gamma to
    the power of the time that k steps take, which is k without durations.

    With `n_step` = n a timestep t covers n' = min(n, steps left of the episode or fragment) steps. Then `rewards` is
    Σₖ gammaᵏ·r(t+k) over k < n' (float32, summed in float64), `new_obs` is o(t+n'), and `terminateds` and
    `truncateds` are those of step t+n'-1. With n = 1 `rewards` keep their dtype. Further columns are available
    for any n: `discounts` (float32: gamma^n', 0 where step t+n'-1 terminated, so that
    `rewards + discounts * V(new_obs)` bootstraps from truncated and unfinished episodes, and not from terminated
    ones), `n_step` (int64: n') and `t` (int64: the timestep's number in its episode). `new_actions` is a(t+n'), and
    comes with `followed` (bool): whether step t+n' is in the same episode or fragment. If not, nothing was recorded,
    and `new_actions` repeats a(t) as a placeholder. `mc_returns` (float32) are the sums of gammaᵏ·r(t+k) up
    to the end of the recorded episode or fragment, for any n.

    With `seq_len` = T an item is T adjacent steps of one episode, and the leaves are `[B, T, ...]`. Sequences begin at
    an episode's steps 0, T - burn_in, 2·(T - burn_in) and so on: each repeats the last `burn_in` steps of the previous
    one to warm up a recurrent state, and an epoch learns from each timestep once. Steps after the end of an
    episode are zero. Batches also hold `loss_mask`, `[B, T]` bool: whether to learn from the step, which is neither
    burn-in nor padding; and `seq_lens`, `[B]` int64: the steps before the padding. A batch of
    `trainBatchSizePerLearner` timesteps has `trainBatchSizePerLearner // T` sequences, as burn-in and padding count.
    n-step columns reach beyond a sequence's end. With `stride` = s sequences begin at an episode's steps 0, s, 2·s and
    so on, so that the last ones are shorter, and an epoch learns from a timestep up to T / s times.

    With `sampling` "epochs" each pass takes every item once. "uniform" and "prioritized" draw each item from all data,
    with replacement, which requires resident data. Drawn by priority (Schaul et al. 2015, arXiv 1511.05952), item i has
    the probability P(i) = pᵢ^alpha / Σ pₖ^alpha; batches contain `weights`, `[B]` float32: (N·P(i))^-beta over the
    maximum of these weights over all N items. pᵢ is 1 at first (for an item that is added during training, the maximum
    so far), then the last value of the algorithm's losses for item i (`Losses.priorities`). An algorithm with a
    schedule for beta sets beta to 1 here, and raises `weights` to the power of the scheduled value.

    Attributes:
        columns: names of whole columns (`obs`, `new_obs`, `actions`, `action_logp` …); a composite column
            comes with all its leaves.
        n_step: n, at least 1.
        seq_len: T; None for single timesteps.
        burn_in: see above, less than T.
        stride: s, from 1 to T and without burn-in; None for T - burn_in.
        initial_state: "recorded" adds the leaves `state_in/…`, `[B, ...]`, to batches of sequences: the recurrent state
            before each sequence's first step, which is `state_in` as stored, else `state_out` of the previous step,
            or zero at an episode's first step. "zero": the module's own initial state.
        counts_sequences: whether the size of a batch is the number of sequences rather than of their timesteps.
        gamma: discount, from 0 to 1; `discounts` and an `n_step` over 1 need it.
        targets: whether the algorithm computes further columns over complete episodes (`Algorithm.targets`), when a
            window is entered.
        targets_every: number of updates after which targets are recomputed while their window is in use; None never
            recomputes them.
        sampling: see above. Targets require windows, which only "epochs" has.
        alpha: for "prioritized", at least 0: exponent of the priorities.
        beta: for "prioritized", at least 0: how much the weights correct the bias; 1 corrects it fully.

    Raises:
        ValueError: a value is out of range, or two contradict each other.
    """

    columns: frozenset[str]
    n_step: int = 1
    gamma: float | None = None
    seq_len: int | None = None
    burn_in: int = 0
    stride: int | None = None
    initial_state: Literal["zero", "recorded"] = "zero"
    counts_sequences: bool = False
    targets: bool = False
    targets_every: int | None = None
    sampling: Literal["epochs", "uniform", "prioritized"] = "epochs"
    alpha: float = 0.6
    beta: float = 0.4

    def __post_init__(self) -> None:
        """Check the values."""
        if self.n_step < 1:
            raise ValueError(f"n_step is {self.n_step}; it must be at least 1")
        is_discounted = self.columns & {Columns.DISCOUNTS, Columns.MC_RETURNS}
        if self.gamma is None and (self.n_step > 1 or is_discounted):
            raise ValueError("returns and discounts need gamma")
        if self.gamma is not None and not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma}; it must be between 0 and 1")
        if self.targets_every is not None and not (self.targets and self.targets_every >= 1):
            raise ValueError(
                f"targets_every is {self.targets_every}; it must be at least 1, and requires targets"
            )
        self._check_sequences()
        self._check_sampling()

    def _check_sampling(self) -> None:
        if self.sampling not in _SAMPLING_BYTES:
            raise ValueError(
                f"sampling is {self.sampling!r}; it must be one of {', '.join(map(repr, _SAMPLING_BYTES))}"
            )
        if self.targets and self.sampling != "epochs":
            raise ValueError(f"sampling is {self.sampling!r}, but targets require sampling 'epochs'")
        if self.alpha < 0 or self.beta < 0:
            raise ValueError(f"alpha is {self.alpha} and beta {self.beta}; both must be at least 0")
        if self.sampling == "prioritized" and Columns.WEIGHTS in self.columns:
            raise ValueError(
                "prioritized sampling adds its own column 'weights'; do not request a recorded one"
            )

    def _check_sequences(self) -> None:
        if self.seq_len is None:
            if self.burn_in or self.stride is not None or self.initial_state == "recorded":
                raise ValueError("burn_in, stride and initial_state require sequences: set seq_len")
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
        """Number of timesteps that an item counts for in a batch."""
        return self.seq_len or 1

    def num_items(self, batch_size: int) -> int:
        """Return the number of items in a batch of `trainBatchSizePerLearner` timesteps."""
        return batch_size if self.counts_sequences else batch_size // self.timesteps_per_item

    @property
    def stored_columns(self) -> frozenset[str]:
        """The columns to read from storage, including those that other needed columns are computed from."""
        column_sets = (_SOURCE_COLUMNS.get(root(column), frozenset({column})) for column in self.columns)
        return frozenset().union(*column_sets)

    @property
    def window_columns(self) -> frozenset[str]:
        """The columns that a window contains, from which items are cut."""
        return self.stored_columns | (self.columns & _EPISODE_COLUMNS)

    @property
    def extra_bytes_per_step(self) -> int:
        """Bytes per step on the device in addition to the columns: lengths of n-step items, returns, priorities."""
        needs_lengths = self.columns & {Columns.DISCOUNTS, Columns.N_STEP}
        followed_bytes = Columns.NEXT_ACTIONS in self.columns  # one byte: `followed` is bool
        return (
            (16 if self.n_step > 1 or needs_lengths else 0)
            + (4 if Columns.MC_RETURNS in self.columns else 0)
            + followed_bytes
            + _SAMPLING_BYTES[self.sampling]
        )

    def with_state_column(self, columns: frozenset[str]) -> Needs:
        """Return the same needs, with the column that recorded initial states are read from, if they are needed.

        Args:
            columns: names of whole columns in the data.

        Raises:
            DataError: recorded states are needed, but the data have none.
        """
        if self.initial_state == "zero":
            return self
        name = next((name for name in STATE_COLUMNS if name in columns), None)
        if name is None:
            raise DataError(
                "is Recorded, but the data have no recurrent states (state_in or state_out): record them with "
                "output.recurrentStates, or leave initialState out.",
                field="spec.model.initialState",
            )
        return self.with_columns(frozenset({name}))

    def with_durations(self, columns: frozenset[str]) -> Needs:
        """Return the same needs, with the durations of steps if the data have them and returns are discounted.

        Args:
            columns: names of whole columns in the data.
        """
        is_discounted = self.gamma is not None or self.targets
        return self.with_columns(columns & {Columns.DELTA_T}) if is_discounted else self

    def with_columns(self, columns: frozenset[str]) -> Needs:
        """Return the same needs with further columns."""
        return replace(self, columns=self.columns | columns)


def transitions(gamma: float, **fields: Any) -> Needs:
    """Return the needs of temporal-difference learning: obs, actions, rewards, new_obs and discounts.

    Args:
        gamma: discount.
        fields: further fields of `Needs`.
    """
    names = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.DISCOUNTS)
    return Needs(columns=frozenset(names), gamma=gamma, **fields)
