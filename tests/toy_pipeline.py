"""Components of a training that tests name as `toy_pipeline:Name`."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from hindcast.algorithms.bc import BC
from hindcast.learn.algorithm import Losses, Step, Tensors
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.pipeline.offline_data import OfflineData
from hindcast.pipeline.window import Batch


class ObservationLog(OfflineData):
    """Adds to `seen`, for each batch, the first values `[B]` of its observations; `seen` is shared by all objects."""

    seen: ClassVar[list[torch.Tensor]] = []

    def sample(self, num_samples: int) -> Batch:
        batch = super().sample(num_samples)
        ObservationLog.seen.append(batch["obs"][:, 0].clone())
        return batch


class DigestingData(OfflineData):
    """Writes a digest of each batch to the file TOY_BATCHES; interrupts its process after TOY_STOP_AT batches."""

    def sample(self, num_samples: int) -> Batch:
        batch = super().sample(num_samples)
        digest = hashlib.sha256()
        for leaf in sorted(batch):
            digest.update(leaf.encode() + batch[leaf].numpy().tobytes())
        with Path(os.environ["TOY_BATCHES"]).open("a") as file:
            file.write(digest.hexdigest() + "\n")
        num_batches = len(Path(os.environ["TOY_BATCHES"]).read_text().split())
        if str(num_batches) == os.environ.get("TOY_STOP_AT"):
            os.kill(os.getpid(), signal.SIGINT)
        return batch


class TwoOptimisers(BC):
    """Behaviour cloning with a separate optimiser for biases."""

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        weights = [parameter for parameter in nets.parameters() if parameter.ndim > 1]
        biases = [parameter for parameter in nets.parameters() if parameter.ndim == 1]
        return {"weights": OptimiserSpec(weights, 1e-3), "biases": OptimiserSpec(biases, 1e-3)}

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        losses = super().losses(nets, batch, step)
        (loss,) = losses.losses.values()
        return Losses({"weights": loss, "biases": 2 * loss}, losses.metrics)


def evaluate_weight_norm(policy: Any, environment: Any, seed: int) -> dict[str, float]:
    """An evaluation function that returns the squared norm of the weights as return."""
    norm = sum(float(parameter.detach().square().sum()) for parameter in policy.module.parameters())
    return {"episode_return_mean": norm, "seed": float(seed)}


def evaluate_without_return(policy: Any, environment: Any, seed: int) -> dict[str, float]:
    """An evaluation function that reports no return."""
    return {"episode_len_mean": 1.0}


def raising_evaluation(policy: Any, environment: Any, seed: int) -> dict[str, float]:
    """An evaluation function that raises."""
    raise ZeroDivisionError("no episodes at all")
