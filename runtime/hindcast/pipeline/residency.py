"""Decide whether data stay resident on the device: the memory that they need, and their budget."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch

from hindcast.episodes.batched import batch_dtype
from hindcast.episodes.columns import Columns, is_per_observation, root
from hindcast.errors import SpecError
from hindcast.formats.spec import DataSpec
from hindcast.formatting import size
from hindcast.memory import memory_limit_bytes
from hindcast.pipeline.window import Recipe

_CUDA_FRACTION = 0.5
_HOST_FRACTION = 0.25
_OBS_ROW_BYTES = 8
"""Bytes of a step's entry in `WindowData.obs_row`, int64."""


class Residency(NamedTuple):
    """The decision whether the data are resident, with the reason as a clause for messages, without a full stop."""

    is_resident: bool
    reason: str


def choose_residency(
    mode: Literal["Auto", "Resident", "Streaming"], nbytes: int, budget: int, stochastic_steps: Iterable[str]
) -> Residency:
    """Choose whether data stay resident: as `mode` requests, else if they fit and are the same in every epoch.

    Args:
        mode: `spec.pipeline.residency`.
        nbytes: bytes of the data on the device.
        budget: maximum bytes of the data.
        stochastic_steps: names of the pre-learner and the connectors whose results differ between epochs.

    Raises:
        SpecError: `Resident` is requested and not possible.
    """
    step_names = ", ".join(stochastic_steps)
    fits = nbytes <= budget
    comparison = f"{size(nbytes)} of data {'fit' if fits else 'exceed'} the budget of {size(budget)}"
    if mode == "Streaming":
        return Residency(False, "spec.pipeline.residency is Streaming")
    if step_names:
        reason = f"the results of {step_names} are random and differ between epochs"
        if mode == "Auto":
            return Residency(False, reason)
        raise SpecError(
            f"is Resident, but {reason}, so the data must be read again; set it to Streaming or Auto.",
            field="spec.pipeline.residency",
        )
    if mode == "Resident" and not fits:
        raise SpecError(
            f"is Resident, but {comparison}; set it to Streaming or Auto, "
            "or raise spec.pipeline.residentBudget.",
            field="spec.pipeline.residency",
            mentions=("spec.pipeline.residentBudget",),
        )
    if mode == "Resident":
        return Residency(True, "spec.pipeline.residency is Resident")
    return Residency(fits, comparison)


def data_bytes(spec: DataSpec, recipe: Recipe, num_steps: int, num_episodes: int) -> int:
    """Return the bytes of the data on the device, without the columns that connectors will add."""
    total = num_steps * _OBS_ROW_BYTES
    for leaf, leaf_spec in spec.leaves.items():
        if root(leaf) in recipe.needs.window_columns and leaf_spec.dtype is not None:
            num_elements = leaf_spec.itemsize // leaf_spec.dtype.itemsize
            # An episode has one more observation than steps.
            num_rows = num_steps + num_episodes if is_per_observation(leaf) else num_steps
            total += num_rows * num_elements * batch_dtype(leaf_spec.dtype).itemsize
    flags = recipe.needs.window_columns & {Columns.TERMINATEDS, Columns.TRUNCATEDS}
    return total + num_steps * (len(flags) + recipe.needs.extra_bytes_per_step)


def default_budget(device: torch.device, num_learners_here: int = 1) -> int:
    """Return a learner's budget in bytes: half of its GPU's free memory, or its share of a quarter of the host's.

    Args:
        device: the learner's device.
        num_learners_here: number of learners that share the memory of this machine or container.
    """
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return int(free_bytes * _CUDA_FRACTION)
    return int(host_memory() * _HOST_FRACTION / num_learners_here)


def host_memory() -> int:
    """Return the bytes of memory of this machine, or of its container if that is limited."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine_bytes, memory_limit_bytes() or machine_bytes)
