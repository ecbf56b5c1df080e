"""Read batches: mappings leaf -> tensor whose first axis is the batch and, for sequences, the second is time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hindcast.episodes.columns import Columns, leaves_of, root

_SEQUENCE_COLUMNS = (Columns.LOSS_MASK, Columns.SEQ_LENS, Columns.STATE_IN)
"""Columns about a whole sequence or its padding."""


def num_timesteps(batch: Mapping[str, Tensor]) -> int:
    """Return the length of the batch axis; for sequences B·T, burn-in and padding included."""
    if Columns.LOSS_MASK in batch:
        return batch[Columns.LOSS_MASK].numel()
    return len(next(iter(batch.values())))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of `values`, `[B, T]`, over the steps where `mask` (`loss_mask`, bool) is set; NaN if nowhere."""
    return torch.where(mask, values, 0.0).sum() / mask.sum()


def batch_mean(values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean of `values`, `[B]` or `[B, T]`, over the steps of the batch that its loss mask selects."""
    mask = batch.get(Columns.LOSS_MASK)
    return values.mean() if mask is None else masked_mean(values, mask)


def fill_padding(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace the padding of each sequence by copies of its first step; a batch of timesteps stays as it is.

    The pipeline pads with zeros, but 0 is not a valid action or observation of, for example, `Discrete(3, start=1)`.
    The first step of a sequence is never padding.
    """
    if Columns.SEQ_LENS not in batch:
        return dict(batch)
    _, width = batch[Columns.LOSS_MASK].shape
    lengths = batch[Columns.SEQ_LENS]
    is_step = torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)

    def fill(values: Tensor) -> Tensor:
        return torch.where(is_step.reshape(*is_step.shape, *[1] * (values.dim() - 2)), values, values[:, :1])

    return {
        leaf: column if root(leaf) in _SEQUENCE_COLUMNS else fill(column) for leaf, column in batch.items()
    }


def actions_of(batch: Mapping[str, Tensor]) -> Tensor | dict[str, Tensor]:
    """Return the batch's actions as distributions accept them: one tensor, or leaf -> tensor in composite spaces."""
    if Columns.ACTIONS in batch:
        return batch[Columns.ACTIONS]
    return {leaf: batch[leaf] for leaf in leaves_of(Columns.ACTIONS, batch)}


def compute_td_target(batch: Mapping[str, Tensor], next_values: Tensor) -> Tensor:
    """Return the TD target `[..., B]`: rewards + discounts·V(s'). The discount is 0 if the episode terminated.

    Args:
        batch: has the columns `rewards` and `discounts` (`Needs`).
        next_values: `[..., B]` values of the next states.
    """
    return batch[Columns.REWARDS].float() + batch[Columns.DISCOUNTS] * next_values
