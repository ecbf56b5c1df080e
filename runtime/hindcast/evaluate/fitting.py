"""The fits of an offline evaluation: Adam on random batches of recorded steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hindcast.learn.optimisers import without_compile_wrappers
from hindcast.learn.schedules import Curve, value_at


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How a network is fitted.

    Attributes:
        updates: most updates of Adam.
        batch_size: timesteps of an update.
        lr: initial learning rate; it decays to 0 along a cosine.
        hiddens: units of the layers.
    """

    updates: int
    batch_size: int = 256
    lr: float = 1e-3
    hiddens: tuple[int, ...] = (64, 64)


def fit(
    network: nn.Module,
    steps: Tensor,
    options: FitOptions,
    loss: Callable[[Tensor], Tensor],
    *,
    generator: torch.Generator,
    check: Callable[[int], None],
) -> Iterator[int]:
    """Minimise a loss with Adam.

    Args:
        network: what is fitted.
        steps: int64, the steps that batches are drawn from.
        options: how.
        loss: of a batch, `[batch_size]` of the steps.
        generator: draws batches.
        check: called with the number of updates made, before each; what it raises ends the fit.

    Yields:
        The number of updates made, before each.
    """
    optimiser = without_compile_wrappers(torch.optim.Adam)(network.parameters(), lr=options.lr)
    decay: Curve = [[0, options.lr, "cosine"], [options.updates, 0.0]]
    for update in range(options.updates):
        check(update)
        yield update
        chosen = steps[torch.randint(len(steps), (options.batch_size,), generator=generator)]
        optimiser.param_groups[0]["lr"] = value_at(decay, update)
        optimiser.zero_grad(set_to_none=True)
        loss(chosen).backward()
        optimiser.step()
