"""`Priorities` draws slots in proportion to priorities (Schaul et al. 2015, arXiv 1511.05952)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

INITIAL_PRIORITY: Final = 1.0
"""The priority of an item that has not been learned from."""
_EPSILON: Final = 1e-6
"""Added to every priority, so that each item can be drawn."""
_FANOUT: Final = 32


class Priorities:
    """Priorities of `size` slots; an empty slot is never drawn.

    They are stored as a sum tree with 32 children per node and one tensor per level. Drawing and setting take a fixed
    number of operations on whole batches, on the tensors' device and without synchronising with it. Nodes are
    recomputed from their children, so rounding errors do not accumulate, and learners that set the same priorities
    have the same bits.

    Args:
        size: number of slots, at least 1.
        alpha: exponent of the priorities: 0 draws uniformly, 1 in proportion.
        device: device of all tensors.
    """

    def __init__(self, size: int, alpha: float, device: torch.device | None = None) -> None:
        self._alpha = alpha
        num_nodes = _round_up(size)
        self._sums = [torch.zeros(num_nodes, dtype=torch.float32, device=device)]
        self._minima: list[Tensor] = []
        while not self._minima or num_nodes > _FANOUT:
            num_nodes = _round_up(num_nodes // _FANOUT)
            self._sums.append(torch.zeros(num_nodes, dtype=torch.float64, device=device))
            self._minima.append(torch.full((num_nodes,), torch.inf, dtype=torch.float64, device=device))

    @property
    def powers(self) -> Tensor:
        """The priorities to the power of alpha, float32, of length `size` or more; 0 for empty slots."""
        return self._sums[0]

    def to_power(self, priority: float) -> float:
        """Return a priority to the power of alpha, as `powers` contains it."""
        return float((abs(priority) + _EPSILON) ** self._alpha)

    def fill(self, powers: Tensor) -> None:
        """Set the priorities of the first `n` slots; `powers`, float32 `[n]`, are to the power of alpha already."""
        self._sums[0][: len(powers)] = powers
        self._refresh(slice(None))

    def set(self, slots_B: Tensor, priority_B: Tensor) -> Tensor:
        """Set the priorities of the slots `[B]` int64; signs are ignored, so TD errors can be passed directly.

        If a slot occurs twice, it gets the greater priority.

        Returns:
            A bool scalar on the device: whether a priority was NaN or infinite. Such priorities are replaced by a tiny
            one.
        """
        values = ((priority_B.abs() + _EPSILON) ** self._alpha).to(torch.float32)
        is_finite = torch.isfinite(values)
        values = torch.where(is_finite, values, _EPSILON)
        self._sums[0].index_fill_(0, slots_B, 0.0).scatter_reduce_(0, slots_B, values, "amax")
        self._refresh(slots_B // _FANOUT)
        return ~is_finite.all()

    def draw(self, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
        """Draw slots in proportion to their priorities to the power of alpha.

        Args:
            uniform_B: `[B]` float64, from 0 to below 1.

        Returns:
            The slots, `[B]` int64, and their probabilities relative to the least likely slot's, `[B]` float64.
        """
        mass = uniform_B * self.total
        nodes = torch.zeros_like(mass, dtype=torch.int64)
        for sums in reversed(self._sums):
            ends = _children(sums, nodes).double().cumsum(1)
            # Rounding may have moved the mass beyond the last slot that has a priority.
            mass = torch.minimum(mass, torch.nextafter(ends[:, -1], mass.new_zeros(()))).unsqueeze(1)
            child = torch.searchsorted(ends, mass, right=True).clamp(max=_FANOUT - 1)
            mass_before = ends.gather(1, (child - 1).clamp(min=0)).masked_fill(child == 0, 0.0)
            mass = (mass - mass_before).squeeze(1)
            nodes = nodes * _FANOUT + child.squeeze(1)
        return nodes, self._sums[0].index_select(0, nodes).double() / self._minima[-1].amin()

    @property
    def total(self) -> Tensor:
        """The sum of all priorities to the power of alpha, a float64 scalar on the device."""
        return self._sums[-1].sum()

    def tensors(self) -> dict[str, Tensor]:
        """Return name -> tensor of each level of the tree (not copies), for a checkpoint."""
        levels = {"sums": self._sums, "least": self._minima}
        return {
            f"{name}/{level}": tensor
            for name, tensors in levels.items()
            for level, tensor in enumerate(tensors)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of the method `tensors`, for the same number of slots."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])

    def _refresh(self, nodes: Tensor | slice) -> None:
        """Recompute nodes of the level above the slots, and their ancestors."""
        sums = _children(self._sums[0], nodes).double()
        minima = sums.masked_fill(sums == 0, torch.inf)
        for level, (parent_sums, parent_minima) in enumerate(
            zip(self._sums[1:], self._minima, strict=True), 1
        ):
            _write_nodes(parent_sums, nodes, sums.sum(1))
            _write_nodes(parent_minima, nodes, minima.amin(1))
            if level < len(self._minima):
                nodes = nodes if isinstance(nodes, slice) else nodes // _FANOUT
                sums, minima = _children(parent_sums, nodes), _children(parent_minima, nodes)


def _children(level: Tensor, nodes: Tensor | slice) -> Tensor:
    """Return the children of the nodes, `[nodes, 32]`."""
    rows = level.view(-1, _FANOUT)
    return rows[nodes] if isinstance(nodes, slice) else rows.index_select(0, nodes)


def _write_nodes(level: Tensor, nodes: Tensor | slice, values: Tensor) -> None:
    if isinstance(nodes, slice):
        level[: len(values)] = values
    else:
        level.index_copy_(0, nodes, values)  # a node that occurs twice has the same value both times


def _round_up(count: int) -> int:
    """Round up to a multiple of `_FANOUT`."""
    return -(-count // _FANOUT) * _FANOUT
