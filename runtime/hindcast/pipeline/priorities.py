"""`Priorities`: draws in proportion to priorities (Schaul et al. 2015, arXiv 1511.05952), a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

INITIAL_PRIORITY: Final = 1.0
"""The priority of an item that has not been learnt from."""
_SMALLEST: Final = 1e-6
"""Added to every priority, so that each item is drawn some time."""
_FANOUT: Final = 32


class Priorities:
    """A priority for each of `size` places; a place without one is never drawn.

    A sum tree with 32 children a node, one tensor a level: drawing and setting are a fixed number of operations on
    whole batches, on the device of the tensors, without synchronising with it. Nodes are recomputed from their
    children, so no rounding errors accumulate, and learners that set the same priorities hold the same bits.

    Args:
        size: places, at least 1.
        alpha: exponent of the priorities: 0 draws uniformly, 1 in proportion.
        device: of all tensors.
    """

    def __init__(self, size: int, alpha: float, device: torch.device | None = None) -> None:
        self._alpha = alpha
        places = _padded(size)
        self._sums = [torch.zeros(places, dtype=torch.float32, device=device)]
        self._least: list[Tensor] = []
        while not self._least or places > _FANOUT:
            places = _padded(places // _FANOUT)
            self._sums.append(torch.zeros(places, dtype=torch.float64, device=device))
            self._least.append(torch.full((places,), torch.inf, dtype=torch.float64, device=device))

    @property
    def powers(self) -> Tensor:
        """Float32, at least `[size]`: the priorities to the power of alpha, 0 where there is none."""
        return self._sums[0]

    def to_power(self, priority: float) -> float:
        return float((abs(priority) + _SMALLEST) ** self._alpha)

    def fill(self, powers: Tensor) -> None:
        """Give the first places these priorities, float32 `[n]` to the power of alpha already."""
        self._sums[0][: len(powers)] = powers
        self._refresh(slice(None))

    def set(self, places_B: Tensor, priority_B: Tensor) -> Tensor:
        """Give the places `[B]` int64 these priorities, whose signs do not count: errors can be given as they are.

        For a place that is named twice the greater priority counts.

        Returns:
            A bool scalar on the device: whether one was NaN or infinite, in whose place the smallest is given.
        """
        values = ((priority_B.abs() + _SMALLEST) ** self._alpha).to(torch.float32)
        finite = torch.isfinite(values)
        values = torch.where(finite, values, _SMALLEST)
        self._sums[0].index_fill_(0, places_B, 0.0).scatter_reduce_(0, places_B, values, "amax")
        self._refresh(places_B // _FANOUT)
        return ~finite.all()

    def draw(self, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
        """Places in proportion to their priorities to the power of alpha.

        Args:
            uniform_B: `[B]` float64, from 0 to below 1.

        Returns:
            `[B]` int64 places, and `[B]` float64 how many times as likely each is as the least likely one.
        """
        mass = uniform_B * self.total
        places = torch.zeros_like(mass, dtype=torch.int64)
        for sums in reversed(self._sums):
            ends = _children(sums, places).double().cumsum(1)
            # Rounding may have put the mass at the end, after the last place that has a priority.
            mass = torch.minimum(mass, torch.nextafter(ends[:, -1], mass.new_zeros(()))).unsqueeze(1)
            child = torch.searchsorted(ends, mass, right=True).clamp(max=_FANOUT - 1)
            before = ends.gather(1, (child - 1).clamp(min=0)).masked_fill(child == 0, 0.0)
            mass = (mass - before).squeeze(1)
            places = places * _FANOUT + child.squeeze(1)
        return places, self._sums[0].index_select(0, places).double() / self._least[-1].amin()

    @property
    def total(self) -> Tensor:
        """The sum of all priorities to the power of alpha, a float64 scalar on the device."""
        return self._sums[-1].sum()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors themselves, for a checkpoint."""
        levels = {"sums": self._sums, "least": self._least}
        return {f"{kind}/{level}": each for kind, own in levels.items() for level, each in enumerate(own)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        for name, own in self.tensors().items():
            own.copy_(tensors[name])

    def _refresh(self, nodes: Tensor | slice) -> None:
        """Recompute nodes of the level above the places, some or all, and those above them."""
        sums = _children(self._sums[0], nodes).double()
        least = sums.masked_fill(sums == 0, torch.inf)
        for level, (above, least_above) in enumerate(zip(self._sums[1:], self._least, strict=True), 1):
            _put(above, nodes, sums.sum(1))
            _put(least_above, nodes, least.amin(1))
            if level < len(self._least):
                nodes = nodes if isinstance(nodes, slice) else nodes // _FANOUT
                sums, least = _children(above, nodes), _children(least_above, nodes)


def _children(level: Tensor, nodes: Tensor | slice) -> Tensor:
    """`[nodes, 32]` of the level below the nodes."""
    rows = level.view(-1, _FANOUT)
    return rows[nodes] if isinstance(nodes, slice) else rows.index_select(0, nodes)


def _put(level: Tensor, nodes: Tensor | slice, values: Tensor) -> None:
    if isinstance(nodes, slice):
        level[: len(values)] = values
    else:
        level.index_copy_(0, nodes, values)  # a node that is named twice has the same value twice


def _padded(count: int) -> int:
    return -(-count // _FANOUT) * _FANOUT
