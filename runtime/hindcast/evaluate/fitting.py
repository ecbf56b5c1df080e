"""Fit the networks of an offline evaluation with Adam on random batches of recorded steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hindcast.learn.optimisers import without_compile_wrappers
from hindcast.learn.schedules import Curve, value_at


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of a fit.

    Attributes:
        updates: maximum number of updates of Adam.
        batch_size: timesteps per update.
        lr: initial learning rate; it decays to 0 along a cosine.
        hiddens: units of each hidden layer.
    """

    updates: int
    batch_size: int = 256
    lr: float = 1e-3
    hiddens: tuple[int, ...] = (64, 64)


def fit(
    network: nn.Module,
    steps: Tensor,
    options: FitOptions,
    compute_loss: Callable[[Tensor], Tensor],
    *,
    generator: torch.Generator,
    check: Callable[[int], None],
) -> Iterator[int]:
    """Minimise a loss with Adam. The network is updated while the caller iterates; without iteration nothing happens.

    Args:
        network: network to fit.
        steps: `[S]` int64 indices of the steps from which batches are drawn, with replacement.
        options: options of the fit.
        compute_loss: returns the loss of a batch, given its steps `[batch_size]`.
        generator: draws batches.
        check: called before each update with the number of updates so far; an exception from it ends the fit.

    Yields:
        Before each update, the number of updates so far.
    """
    optimiser = without_compile_wrappers(torch.optim.Adam)(network.parameters(), lr=options.lr)
    decay: Curve = [[0, options.lr, "cosine"], [options.updates, 0.0]]
    for update in range(options.updates):
        check(update)
        yield update
        batch_steps = steps[torch.randint(len(steps), (options.batch_size,), generator=generator)]
        optimiser.param_groups[0]["lr"] = value_at(decay, update)
        network.zero_grad(set_to_none=True)
        compute_loss(batch_steps).backward()
        optimiser.step()
