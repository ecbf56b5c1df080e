"""Where the data of a feed live: how much memory they would take, and how much they may."""

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
from hindcast.memory import memory_limit
from hindcast.pipeline.window import Recipe

_CUDA_SHARE = 0.5
_HOST_SHARE = 0.25
_ROW_BYTES = 8


class Residency(NamedTuple):
    """Whether a feed is resident, and why, as a sentence without its full stop."""

    is_resident: bool
    reason: str


def choose_residency(
    wanted: Literal["Auto", "Resident", "Streaming"], nbytes: int, budget: int, stochastic: Iterable[str]
) -> Residency:
    """Resident if the data fit the budget, unless `wanted` says otherwise.

    Args:
        budget: bytes that the data may take.
        stochastic: names of steps whose result differs between epochs.

    Raises:
        SpecError: `Resident` was asked for and is not possible.
    """
    steps = ", ".join(stochastic)
    fits = nbytes <= budget
    comparison = f"{size(nbytes)} of data {'fit' if fits else 'exceed'} the budget of {size(budget)}"
    if wanted == "Streaming":
        return Residency(False, "asked for")
    if wanted == "Resident" and steps:
        raise SpecError(
            f"spec.pipeline.residency is Resident, but {steps} draws new random numbers in every epoch, "
            "so that the data must be read again; take Streaming or Auto."
        )
    if wanted == "Resident" and not fits:
        raise SpecError(
            f"spec.pipeline.residency is Resident, but {comparison}; raise spec.pipeline.residentBudget, "
            "or take Streaming or Auto."
        )
    if wanted == "Resident":
        return Residency(True, "asked for")
    if steps:
        return Residency(False, f"{steps} draws new random numbers in every epoch")
    return Residency(fits, comparison)


def data_bytes(spec: DataSpec, recipe: Recipe, steps: int, episodes: int) -> int:
    """Bytes on the device of so many steps and episodes; columns that connectors will add are not known."""
    rows = {True: steps + episodes, False: steps}
    total = steps * _ROW_BYTES
    for leaf, what in spec.leaves.items():
        if root(leaf) in recipe.needs.window_columns and what.dtype is not None:
            elements = what.itemsize // what.dtype.itemsize
            total += rows[is_per_observation(leaf)] * elements * batch_dtype(what.dtype).itemsize
    flags = recipe.needs.window_columns & {Columns.TERMINATEDS, Columns.TRUNCATEDS}
    return total + steps * (len(flags) + recipe.needs.extra_bytes_per_step)


def default_budget(device: torch.device) -> int:
    """Half of the free memory of a GPU; a quarter of the machine's or container's memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _CUDA_SHARE)
    return int(host_memory() * _HOST_SHARE)


def host_memory() -> int:
    """Bytes of memory that this machine has, or that its container may use."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine, memory_limit() or machine)
