"""Returns and advantages over many episodes at once (GAE: arXiv 1506.02438).

Episodes are laid end to end along the first axis. A sum that runs backwards through an episode is a linear
recurrence, solved for all steps together by doubling: log2(longest episode) passes, no loop over timesteps,
no padding.

Shape suffixes: S = steps of all episodes (or `[T, B]`, time first), O = S + N observations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hindcast.episodes.block import Block
from hindcast.pipeline.window import WindowData


def discounted_sums(values_S: Tensor, decay_S: Tensor) -> Tensor:
    """`y[t] = values[t] + decay[t] * y[t + 1]` along the first axis; a decay of 0 ends a segment.

    Args:
        values_S: `[S, ...]` float.
        decay_S: same shape; anything after the last row counts as 0.

    Returns:
        `[S, ...]`, of the same dtype.
    """
    total, decay = values_S.clone(), decay_S.clone()
    decay[-1:] = 0
    reach = 1
    while reach < len(total) and bool(decay.any()):
        total[:-reach] += decay[:-reach] * total[reach:].clone()
        decay[:-reach] *= decay[reach:].clone()
        decay[-reach:] = 0
        reach *= 2
    return total


def gae(
    *,
    rewards_S: Tensor,
    values_S: Tensor,
    next_values_S: Tensor,
    terminated_S: Tensor,
    last_S: Tensor,
    gamma: float,
    lambda_: float,
) -> Tensor:
    """Generalised advantage estimates.

    Termination does not bootstrap. Truncation, and the end of a fragment, bootstrap with the value of the
    observation that follows.

    Args:
        rewards_S: `[S]` or `[T, B]` float.
        values_S: V of each step's observation.
        next_values_S: V of the observation after each step (an episode's final observation included).
        terminated_S: bool, whether the environment ended the episode at this step.
        last_S: bool, whether the step is the last of its episode or fragment.
        gamma: discount.
        lambda_: 0 gives one-step temporal differences, 1 the (bootstrapped) Monte-Carlo return minus V.

    Returns:
        Advantages, shaped like `rewards_S`. Value targets are `advantages + values`.
    """
    deltas = rewards_S + gamma * next_values_S * ~terminated_S - values_S
    return discounted_sums(deltas, gamma * lambda_ * (~(last_S | terminated_S)).to(deltas.dtype))


def block_gae(block: Block, values_O: Tensor, gamma: float, lambda_: float) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of a block's episodes or fragments.

    Args:
        block: has `rewards`.
        values_O: `[O]` V of every observation, final ones included.
        gamma: discount.
        lambda_: see `gae`.

    Returns:
        `[S]` advantages and `[S]` value targets, on the device of `values_O`, float32.
    """
    device = values_O.device
    return episodes_gae(
        rewards_S=torch.from_numpy(block.columns["rewards"]).to(device),
        values_O=values_O,
        length_N=torch.from_numpy(block.length).to(device),
        terminated_N=torch.from_numpy(block.terminated).to(device),
        gamma=gamma,
        lambda_=lambda_,
    )


def window_gae(window: WindowData, values_O: Tensor, gamma: float, lambda_: float) -> tuple[Tensor, Tensor]:
    """The same of a window's episodes; `window.over_observations` gives the values."""
    return episodes_gae(
        rewards_S=window.columns["rewards"],
        values_O=values_O,
        length_N=window.length,
        terminated_N=window.terminated,
        gamma=gamma,
        lambda_=lambda_,
    )


def episodes_gae(
    *,
    rewards_S: Tensor,
    values_O: Tensor,
    length_N: Tensor,
    terminated_N: Tensor,
    gamma: float,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """See `block_gae`; all on one device."""
    episode = torch.repeat_interleave(torch.arange(len(length_N), device=length_N.device), length_N)
    steps = torch.arange(len(episode), device=length_N.device)
    last_S = steps + 1 == length_N.cumsum(0)[episode]
    row = steps + episode
    values_S = values_O[row].float()
    advantages = gae(
        rewards_S=rewards_S.float(),
        values_S=values_S,
        next_values_S=values_O[row + 1].float(),
        terminated_S=last_S & terminated_N[episode],
        last_S=last_S,
        gamma=gamma,
        lambda_=lambda_,
    )
    return advantages, advantages + values_S
