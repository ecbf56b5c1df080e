"""The items of a batch: timesteps, n-step transitions or sequences of episodes laid end to end, all at once.

Shape suffixes: N = episodes, S = steps of all of them, I = sequences of all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.pipeline.needs import Needs

I64 = NDArray[np.int64]


def count_items(length_N: I64, needs: Needs) -> I64:
    """`[N]` items of each episode: its timesteps, or its sequences."""
    if needs.seq_len is None:
        return length_N
    return count_sequences(length_N, needs.seq_len, needs.burn_in, needs.stride)


def count_sequences(length_N: I64, seq_len: int, burn_in: int, stride: int | None = None) -> I64:
    """`[N]` sequences of each episode; an episode without steps has none."""
    if stride is not None:
        return -(-length_N // stride)
    beyond_the_first = np.maximum(length_N - seq_len, 0)
    return (length_N > 0) + -(-beyond_the_first // (seq_len - burn_in))


class Sequences(NamedTuple):
    """The sequences of all episodes, in order.

    Attributes:
        first: `[I]` int64, the first step of each, among the steps of all episodes.
        length: `[I]` int64, its steps, including burn-in and excluding padding.
        burn_in: `[I]` int64, how many of them only warm up the state.
        begins: `[I]` bool, whether its first step is its episode's first.
    """

    first_step: Tensor
    length: Tensor
    burn_in: Tensor
    is_first: Tensor


def cut_sequences(length_N: Tensor, seq_len: int, burn_in: int, stride: int | None = None) -> Sequences:
    """A sequence begins every `seq_len - burn_in` steps of an episode, until all its steps are learned from.

    With a `stride`, one begins every `stride` steps, up to the episode's end.
    """
    device = length_N.device
    count = torch.from_numpy(count_sequences(length_N.cpu().numpy(), seq_len, burn_in, stride)).to(device)
    total = int(count.sum())
    episode = torch.repeat_interleave(torch.arange(len(count), device=device), count, output_size=total)
    number = torch.arange(total, device=device) - (count.cumsum(0) - count)[episode]
    start = number * (stride or seq_len - burn_in)
    return Sequences(
        first_step=(length_N.cumsum(0) - length_N)[episode] + start,
        length=(length_N[episode] - start).clamp(max=seq_len),
        burn_in=burn_in * (number > 0),
        is_first=number == 0,
    )


def steps_ahead(length_N: Tensor, n: int) -> Tensor:
    """`[S]` int64: how many steps the n-step transition from each step covers: n, or those left of its episode."""
    ends = torch.repeat_interleave(length_N.cumsum(0), length_N)
    return (ends - torch.arange(len(ends), device=ends.device)).clamp(max=n)


def discounted_rewards(rewards_S: Tensor, ahead_S: Tensor, n: int, gamma: float) -> Tensor:
    """`[S]` float64: the sum of gammaᵏ·r(t+k) over the steps that the transition covers."""
    total = rewards_S.double()
    for k in range(1, min(n, len(total))):
        later = gamma**k * rewards_S[k:].double()
        total[:-k] += torch.where(ahead_S[:-k] > k, later, 0.0)
    return total


def discounts(length_N: Tensor, terminated_N: Tensor, ahead_S: Tensor, n: int, gamma: float) -> Tensor:
    """`[S]` float32: gamma to the power of the steps covered, 0 where the last of them terminated."""
    powers = gamma ** torch.arange(n + 1, dtype=torch.float64, device=ahead_S.device)
    last = torch.arange(len(ahead_S), device=ahead_S.device) + ahead_S
    ends = last == torch.repeat_interleave(length_N.cumsum(0), length_N)
    terminated = ends & torch.repeat_interleave(terminated_N, length_N)
    return powers[ahead_S].masked_fill(terminated, 0.0).float()
