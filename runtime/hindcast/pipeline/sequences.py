"""Sequences: episodes cut into pieces of equal length, by index.

Shape suffixes: N = episodes, I = sequences of all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

I64 = NDArray[np.int64]


def sequences_in(length_N: I64, seq_len: int, burn_in: int, stride: int | None = None) -> I64:
    """`[N]` sequences of each episode; an episode without steps has none."""
    if stride is not None:
        return -(-length_N // stride)
    beyond_the_first = np.maximum(length_N - seq_len, 0)
    return (length_N > 0) + -(-beyond_the_first // (seq_len - burn_in))


class Sequences(NamedTuple):
    """The sequences of episodes that lie end to end, in order.

    Attributes:
        first: `[I]` int64, the first step of each, among the steps of all episodes.
        length: `[I]` int64, its steps, burn-in included and padding not.
        burn_in: `[I]` int64, how many of them only warm up.
        begins: `[I]` bool, whether its first step is its episode's.
    """

    first: Tensor
    length: Tensor
    burn_in: Tensor
    begins: Tensor


def cut(length_N: Tensor, seq_len: int, burn_in: int, stride: int | None = None) -> Sequences:
    """One begins every `seq_len - burn_in` steps of an episode, until all its steps are learnt from.

    With a `stride` one begins every so many steps, to the episode's end.
    """
    device = length_N.device
    count = torch.from_numpy(sequences_in(length_N.cpu().numpy(), seq_len, burn_in, stride)).to(device)
    total = int(count.sum())
    episode = torch.repeat_interleave(torch.arange(len(count), device=device), count, output_size=total)
    number = torch.arange(total, device=device) - (count.cumsum(0) - count)[episode]
    start = number * (stride or seq_len - burn_in)
    return Sequences(
        first=(length_N.cumsum(0) - length_N)[episode] + start,
        length=(length_N[episode] - start).clamp(max=seq_len),
        burn_in=burn_in * (number > 0),
        begins=number == 0,
    )
