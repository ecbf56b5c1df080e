"""Reading a batch: a mapping leaf -> tensor whose first axis is the batch; of sequences the second is time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hindcast.episodes.columns import Columns, leaves_of, root

_OF_SEQUENCES = (Columns.LOSS_MASK, Columns.SEQ_LENS, Columns.STATE_IN)
"""Columns about a sequence as a whole or its padding."""


def num_timesteps(batch: Mapping[str, Tensor]) -> int:
    """Length of the batch axis; of sequences the number of their places, burn-in and padding among them."""
    if Columns.LOSS_MASK in batch:
        return batch[Columns.LOSS_MASK].numel()
    return len(next(iter(batch.values())))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of `values`, `[B, T]`, where `mask` (`loss_mask`, bool) says to learn from the step."""
    return torch.where(mask, values, 0.0).sum() / mask.sum()


def batch_mean(values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean of `values`, `[B]` or `[B, T]`, over the steps of the batch that are learnt from."""
    mask = batch.get(Columns.LOSS_MASK)
    return values.mean() if mask is None else masked_mean(values, mask)


def fill_padding(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The batch with the first step of each sequence in its padding; a batch of timesteps as it is.

    Padding is zero, which an action or observation of `Discrete(3, start=1)` cannot be. The first place of a sequence
    is always a step.
    """
    if Columns.SEQ_LENS not in batch:
        return dict(batch)
    _, width = batch[Columns.LOSS_MASK].shape
    lengths = batch[Columns.SEQ_LENS]
    known = torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)

    def filled(values: Tensor) -> Tensor:
        return torch.where(known.reshape(*known.shape, *[1] * (values.dim() - 2)), values, values[:, :1])

    return {leaf: each if root(leaf) in _OF_SEQUENCES else filled(each) for leaf, each in batch.items()}


def actions_of(batch: Mapping[str, Tensor]) -> Tensor | dict[str, Tensor]:
    """The actions as distributions take them: one tensor, or leaf -> tensor of a composite space."""
    if Columns.ACTIONS in batch:
        return batch[Columns.ACTIONS]
    return {leaf: batch[leaf] for leaf in leaves_of(Columns.ACTIONS, batch)}


def td_target(batch: Mapping[str, Tensor], next_values: Tensor) -> Tensor:
    """`[..., B]` what values are regressed on: r + gamma·V(s'), and r alone where the environment ended the episode.

    Args:
        batch: holds `rewards` and `discounts` (`Needs`).
        following: `[..., B]` values of the next states.
    """
    return batch[Columns.REWARDS].float() + batch[Columns.DISCOUNTS] * next_values
