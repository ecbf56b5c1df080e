"""Reading a batch: a mapping leaf -> tensor whose first axis is the batch; of sequences the second is time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hindcast.episodes.columns import Columns, leaves_of


def num_timesteps(batch: Mapping[str, Tensor]) -> int:
    """Length of the batch axis; of sequences the number of their places, burn-in and padding among them."""
    if Columns.LOSS_MASK in batch:
        return batch[Columns.LOSS_MASK].numel()
    return len(next(iter(batch.values())))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of `values`, `[B, T]`, where `mask` (`loss_mask`, bool) says to learn from the step."""
    return torch.where(mask, values, 0.0).sum() / mask.sum()


def actions_of(batch: Mapping[str, Tensor]) -> Tensor | dict[str, Tensor]:
    """The actions as distributions take them: one tensor, or leaf -> tensor of a composite space."""
    if Columns.ACTIONS in batch:
        return batch[Columns.ACTIONS]
    return {leaf: batch[leaf] for leaf in leaves_of(Columns.ACTIONS, list(batch))}
