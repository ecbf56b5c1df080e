"""The items of a batch, vectorised: timesteps, n-step transitions or sequences of episodes laid end to end.

Shape suffixes: N = episodes, S = steps of all episodes, I = sequences of all episodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.pipeline.needs import Needs

I64 = NDArray[np.int64]


def count_items(length_N: I64, needs: Needs) -> I64:
    """Return the number of items of each episode, `[N]`: its timesteps, or its sequences if `needs.seq_len` is set."""
    if needs.seq_len is None:
        return length_N
    return count_sequences(length_N, needs.seq_len, needs.burn_in, needs.stride)


def count_sequences(length_N: I64, seq_len: int, burn_in: int, stride: int | None = None) -> I64:
    """Return the number of sequences of each episode, `[N]`; an episode without steps has none."""
    if stride is not None:
        return -(-length_N // stride)
    num_remaining = np.maximum(length_N - seq_len, 0)
    return (length_N > 0) + -(-num_remaining // (seq_len - burn_in))


class Sequences(NamedTuple):
    """The sequences of all episodes, in order.

    Attributes:
        first_step: `[I]` int64, index of the first step among the steps of all episodes.
        length: `[I]` int64, number of steps, including burn-in and excluding padding.
        burn_in: `[I]` int64, number of steps that only warm up the state.
        is_first: `[I]` bool, whether the first step is the first one of its episode.
    """

    first_step: Tensor
    length: Tensor
    burn_in: Tensor
    is_first: Tensor


def cut_sequences(length_N: Tensor, seq_len: int, burn_in: int, stride: int | None = None) -> Sequences:
    """Cut episodes into sequences that begin every `seq_len - burn_in` steps, until every step is in one.

    With a `stride`, a sequence begins every `stride` steps, up to the episode's end.
    """
    device = length_N.device
    num_sequences = torch.from_numpy(count_sequences(length_N.cpu().numpy(), seq_len, burn_in, stride)).to(
        device
    )
    total = int(num_sequences.sum())
    episode_index = torch.repeat_interleave(
        torch.arange(len(num_sequences), device=device), num_sequences, output_size=total
    )
    sequence_number = (
        torch.arange(total, device=device) - (num_sequences.cumsum(0) - num_sequences)[episode_index]
    )
    start = sequence_number * (stride or seq_len - burn_in)
    return Sequences(
        first_step=(length_N.cumsum(0) - length_N)[episode_index] + start,
        length=(length_N[episode_index] - start).clamp(max=seq_len),
        burn_in=burn_in * (sequence_number > 0),
        is_first=sequence_number == 0,
    )


def steps_ahead(length_N: Tensor, n: int) -> Tensor:
    """Return the steps that the n-step transition from each step covers, `[S]` int64: n, or fewer at the end."""
    ends = torch.repeat_interleave(length_N.cumsum(0), length_N)
    return (ends - torch.arange(len(ends), device=ends.device)).clamp(max=n)


def discounted_rewards(
    rewards_S: Tensor, ahead_S: Tensor, n: int, gamma: float, delta_t_S: Tensor | None = None
) -> Tensor:
    """Return the sum of gammaᵏ·r(t+k) over the `ahead_S` steps that each transition covers, `[S]` float64.

    With durations of steps, the exponent is the time from step t to step t + k.
    """
    total = rewards_S.double()
    duration = None if delta_t_S is None else delta_t_S.double()
    for k in range(1, min(n, len(total))):
        discount: float | Tensor = gamma**k
        if delta_t_S is not None and duration is not None:
            discount = gamma ** duration[:-1]
            duration = duration[:-1] + delta_t_S[k:].double()
        discounted = discount * rewards_S[k:].double()
        total[:-k] += torch.where(ahead_S[:-k] > k, discounted, 0.0)
    return total


def discounts(
    length_N: Tensor,
    terminated_N: Tensor,
    ahead_S: Tensor,
    n: int,
    gamma: float,
    *,
    delta_t_S: Tensor | None = None,
) -> Tensor:
    """Return gamma to the power of `ahead_S`, the steps that each transition covers, `[S]` float32.

    With durations of steps, the exponent is the sum of those of these steps. The discount is 0 if the last of these
    steps terminates the episode.
    """
    if delta_t_S is None:
        powers = gamma ** torch.arange(n + 1, dtype=torch.float64, device=ahead_S.device)
        discount = powers[ahead_S]
    else:
        ends = torch.cat([delta_t_S.new_zeros(1, dtype=torch.float64), delta_t_S.double().cumsum(0)])
        steps = torch.arange(len(ahead_S), device=ahead_S.device)
        discount = gamma ** (ends[steps + ahead_S] - ends[steps])
    covered_end = torch.arange(len(ahead_S), device=ahead_S.device) + ahead_S
    reaches_end = covered_end == torch.repeat_interleave(length_N.cumsum(0), length_N)
    is_terminated = reaches_end & torch.repeat_interleave(terminated_N, length_N)
    return discount.masked_fill(is_terminated, 0.0).float()


def monte_carlo_returns(
    rewards_S: NDArray[Any], length_N: I64, gamma: float, delta_t_S: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """Return the sum of gammaᵏ·r(t+k) over the steps from t to the end of the episode, `[S]`.

    With durations of steps, the exponent is the time from step t to step t + k.
    """
    total = rewards_S.astype(np.float64)
    decay = gamma ** (np.ones_like(total) if delta_t_S is None else delta_t_S.astype(np.float64))
    decay[length_N.cumsum()[length_N > 0] - 1] = 0.0
    span = 1
    # y[t] = r[t] + decay[t]·y[t + 1] by doubling: each pass doubles the steps that `total` sums over.
    while span < len(total) and decay.any():
        total[:-span] += decay[:-span] * total[span:]
        decay[:-span] *= decay[span:]
        decay[-span:] = 0.0
        span *= 2
    return total.astype(np.float32)
