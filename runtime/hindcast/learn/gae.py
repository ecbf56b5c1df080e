"""Returns and advantages over many episodes at once (GAE: arXiv 1506.02438).

Episodes are laid end to end along the first axis. A sum that runs backwards through an episode is a linear
recurrence, solved for all steps together by doubling: log2(longest episode) passes, no loop over timesteps,
no padding.

Shape suffixes: N = episodes, S = their steps, O = S + N observations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.pipeline.window import WindowData


def discounted_sums(values_S: Tensor, decay_S: Tensor) -> Tensor:
    """Compute `y[t] = values[t] + decay[t] * y[t + 1]` along the first axis; a decay of 0 ends a segment.

    Args:
        values_S: `[S, ...]` float.
        decay_S: same shape; the last row has no effect, since no value follows it.

    Returns:
        `[S, ...]`, of the same dtype.
    """
    total, decay = values_S.clone(), decay_S.clone()
    decay[-1:] = 0
    span = 1
    # Each pass doubles the steps that `total` sums over; `decay` is the product over the same steps.
    while span < len(total) and bool(decay.any()):
        total[:-span] += decay[:-span] * total[span:].clone()
        decay[:-span] *= decay[span:].clone()
        decay[-span:] = 0
        span *= 2
    return total


def block_gae(block: Block, values_O: Tensor, gamma: float, lambda_: float) -> tuple[Tensor, Tensor]:
    """Estimate advantages (GAE) and value targets of a block's episodes or fragments.

    Termination does not bootstrap. Truncation and the end of a fragment bootstrap with the value of the observation
    that follows. If steps have durations (`delta_t`), `gamma` discounts per unit of time, and `lambda_` per step.

    Args:
        block: has `rewards`.
        values_O: `[O]` V of every observation, final observations included.
        gamma: discount.
        lambda_: 0 gives one-step temporal differences, 1 the (bootstrapped) Monte-Carlo return minus V.

    Returns:
        `[S]` advantages and `[S]` value targets (advantages + V), float32, on the device of `values_O`.
    """
    arrays = (block.columns["rewards"], block.length, block.terminated)
    rewards_S, length_N, terminated_N = (torch.from_numpy(array).to(values_O.device) for array in arrays)
    discount_S: float | Tensor = gamma
    delta_t = block.columns.get(Columns.DELTA_T)
    if delta_t is not None and (delta_t != 1).any():
        discount_S = gamma ** torch.from_numpy(delta_t).to(values_O.device, torch.float64)
    return _gae(rewards_S, values_O, length_N, terminated_N, discount_S=discount_S, lambda_=lambda_)


def window_gae(window: WindowData, values_O: Tensor, gamma: float, lambda_: float) -> tuple[Tensor, Tensor]:
    """Estimate advantages and value targets as `block_gae` does, for a window's episodes.

    `window.map_observations` computes `values_O`.
    """
    rewards_S, terminated_N = window.columns["rewards"], window.terminated
    discount_S = gamma if window.delta_t is None else gamma ** window.delta_t.double()
    return _gae(rewards_S, values_O, window.length, terminated_N, discount_S=discount_S, lambda_=lambda_)


def _gae(
    rewards_S: Tensor,
    values_O: Tensor,
    length_N: Tensor,
    terminated_N: Tensor,
    *,
    discount_S: float | Tensor,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """Compute `block_gae` from tensors on one device; `discount_S` is one number or `[S]` float64."""
    episode = torch.repeat_interleave(torch.arange(len(length_N), device=length_N.device), length_N)
    steps = torch.arange(len(episode), device=length_N.device)
    last_S = steps + 1 == length_N.cumsum(0)[episode]
    row = steps + episode  # an episode has one observation more than steps
    values_S, next_values_S = values_O[row].float(), values_O[row + 1].float()
    bootstraps_S = ~(last_S & terminated_N[episode])
    decay_S = discount_S * lambda_
    if isinstance(discount_S, Tensor) and isinstance(decay_S, Tensor):
        discount_S, decay_S = discount_S.float(), decay_S.float()
    deltas_S = rewards_S.float() + discount_S * next_values_S * bootstraps_S - values_S
    advantages_S = discounted_sums(deltas_S, decay_S * (~last_S).to(deltas_S.dtype))
    return advantages_S, advantages_S + values_S
