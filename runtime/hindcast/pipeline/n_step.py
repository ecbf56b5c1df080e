"""n-step transitions over episodes that lie end to end; all steps at once.

Shape suffixes: N = episodes, S = steps of all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def steps_ahead(length_N: Tensor, n: int) -> Tensor:
    """`[S]` int64: how many steps an item covers that begins there: n, or those left of its episode."""
    ends = torch.repeat_interleave(length_N.cumsum(0), length_N)
    return (ends - torch.arange(len(ends), device=ends.device)).clamp(max=n)


def discounted_rewards(rewards_S: Tensor, ahead_S: Tensor, n: int, gamma: float) -> Tensor:
    """`[S]` float32: the sum of gammaᵏ·r(t+k) over the steps that the item covers."""
    total = rewards_S.double()
    for k in range(1, min(n, len(total))):
        later = gamma**k * rewards_S[k:].double()
        total[:-k] += torch.where(ahead_S[:-k] > k, later, 0.0)
    return total.float()


def discounts(length_N: Tensor, terminated_N: Tensor, ahead_S: Tensor, n: int, gamma: float) -> Tensor:
    """`[S]` float32: gamma to the power of the steps covered, 0 where the last of them terminated."""
    powers = gamma ** torch.arange(n + 1, dtype=torch.float64, device=ahead_S.device)
    last = torch.arange(len(ahead_S), device=ahead_S.device) + ahead_S
    ends = last == torch.repeat_interleave(length_N.cumsum(0), length_N)
    terminated = ends & torch.repeat_interleave(terminated_N, length_N)
    return powers[ahead_S].masked_fill(terminated, 0.0).float()
