"""Read batches: mappings leaf -> tensor whose first axis is the batch and, for sequences, the second is time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hindcast.episodes.columns import Columns, leaves_of, obs_leaf, root
from hindcast.models.recurrent import NEXT_STEPS

_SEQUENCE_COLUMNS = (Columns.LOSS_MASK, Columns.STATE_IN)
"""Columns about the padding of a sequence, or about a whole sequence."""


def batch_shape(batch: Mapping[str, Tensor]) -> torch.Size:
    """Return the shape of the batch: `[B]`, or `[B, T]` for sequences."""
    return (
        batch[Columns.LOSS_MASK].shape if Columns.LOSS_MASK in batch else next(iter(batch.values())).shape[:1]
    )


def num_timesteps(batch: Mapping[str, Tensor]) -> int:
    """Return the length of the batch axis; for sequences B·T, burn-in and padding included."""
    return batch_shape(batch).numel()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean `[...]` of `values`, `[..., B, T]`, over the steps where `mask` (`loss_mask`, bool) is set.

    It is NaN if the mask is set nowhere.
    """
    return torch.where(mask, values, 0.0).sum((-2, -1)) / mask.sum()


def batch_mean(values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean `[...]` of `values` over the steps of the batch that its loss mask selects.

    Args:
        values: `[..., B]`, or `[..., B, T]` for sequences.
        batch: the batch.
    """
    mask = batch.get(Columns.LOSS_MASK)
    return values.mean(-1) if mask is None else masked_mean(values, mask)


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
        leaf: column if root(leaf) in _SEQUENCE_COLUMNS or column.dim() < 2 else fill(column)
        for leaf, column in batch.items()
    }


def prepare_sequences(batch: Mapping[str, Tensor], n_step: int = 1) -> Mapping[str, Tensor]:
    """Prepare a batch of sequences for recurrent networks; a batch of timesteps stays as it is.

    Padding is filled, see `fill_padding`. A network can only be unrolled over consecutive observations, so `new_obs`
    becomes the sequence's own observations and the `n_step` after them, `[B, T + n_step, ...]`. `next_observations`
    makes networks return the outputs at each step's next observation, `[B, T, ...]`.

    Args:
        batch: a batch of `Needs` with sequences of at least `n_step` steps; with `n_step` > 1 it has the column
            `n_step`.
        n_step: maximum number of steps from a step to its next observation.
    """
    if Columns.SEQ_LENS not in batch:
        return batch
    lengths, width = batch[Columns.SEQ_LENS].unsqueeze(1), batch[Columns.LOSS_MASK].shape[1]
    result = fill_padding(batch)
    next_leaves = leaves_of(Columns.NEXT_OBS, batch)
    if not next_leaves:
        return result
    steps = torch.arange(width + n_step, device=lengths.device)
    # A sequence shorter than T ends with its episode, where the next observation of the last n steps is the final one.
    next_rows = width + torch.minimum((steps - n_step).clamp(min=0), lengths - 1)
    rows = torch.where(steps < lengths, steps, next_rows)
    sequence = torch.arange(len(lengths), device=lengths.device).unsqueeze(1)
    for leaf in next_leaves:
        result[leaf] = torch.cat([result[obs_leaf(leaf)], result[leaf]], 1)[sequence, rows]
    num_steps = batch[Columns.N_STEP] if n_step > 1 else 1
    # Padding has no next observation; its index only has to exist.
    next_steps = torch.arange(width, device=lengths.device) + num_steps
    result[NEXT_STEPS] = next_steps.expand(len(lengths), -1)
    return result


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
