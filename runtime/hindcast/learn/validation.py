"""Compute an algorithm's losses on data that it does not learn from."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce

import torch
from torch import Tensor

from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Algorithm, Losses, Step
from hindcast.learn.batches import num_timesteps
from hindcast.learn.learner import Learner, loss_stages
from hindcast.learn.metrics import TOTAL_LOSS
from hindcast.user_code import calling


def validation_metrics(
    algorithm: Algorithm, learner: Learner, batches: Iterable[Mapping[str, Tensor]], seed: int
) -> dict[str, float]:
    """Compute the algorithm's losses and metrics over all batches, weighted by the steps that the loss mask selects.

    Training continues as if this had not been called: the networks are copied and set to evaluation mode, and the
    learner's generators do not advance.

    Args:
        algorithm: the learner's algorithm, with losses that are not compiled.
        learner: has the networks, which are copied.
        batches: batches as `Learner.update` accepts them.
        seed: seed of the losses' noise.

    Returns:
        Means by name; `total_loss` is the sum of the losses. Empty if the loss masks select no steps.

    Raises:
        UserCodeError: the algorithm's code raised.
    """
    nets, device = copy.deepcopy(learner.nets).eval(), learner.device
    generator = torch.Generator(device).manual_seed(seed)
    clock = torch.full((), float(learner.timesteps), dtype=torch.float64, device=device)
    step = Step(learner.updates, learner.timesteps, generator, clock)
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64, device=device))
    weights: dict[str, float] = defaultdict(float)
    # Losses may also draw from torch's global generators, which drive dropout in training.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for batch in batches:
            weight = _num_loss_steps(batch)
            with calling(f"algorithm {type(algorithm).__name__}", algorithm.losses):
                metrics = _collect_metrics(loss_stages(algorithm.losses(nets, batch, step)))
            for name, value in metrics.items():
                sums[name] += value.double() * weight
                weights[name] += weight
    return {name: float(total) / weights[name] for name, total in sums.items() if weights[name]}


def _collect_metrics(stages: Iterable[Losses]) -> dict[str, Tensor]:
    metrics: dict[str, Tensor] = {}
    losses: dict[str, Tensor] = {}
    for stage in stages:
        metrics |= {name: value.detach() for name, value in stage.metrics.items()}
        losses |= {name: loss.detach() for name, loss in stage.losses.items()}
    if losses:
        metrics[TOTAL_LOSS] = reduce(torch.add, losses.values())
    if len(losses) > 1:
        metrics |= {f"{TOTAL_LOSS}/{name}": loss for name, loss in losses.items()}
    return metrics


def _num_loss_steps(batch: Mapping[str, Tensor]) -> float:
    """Return the number of steps in a batch that its loss mask selects."""
    mask = batch.get(Columns.LOSS_MASK)
    return float(num_timesteps(batch)) if mask is None else float(mask.sum())
