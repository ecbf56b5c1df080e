"""What this machine, or the pod, can give to a run that asks for more."""

from __future__ import annotations

import torch

from hindcast.api.training import LearnersSpec
from hindcast.errors import NoCudaDevice
from hindcast.threads import processors


def clamp_replicas(wanted: int, what: str) -> tuple[int, str | None]:
    """As many replicas as this machine has processors, and the sentence that says so.

    Args:
        what: "runners", "evaluation runners" …

    Returns:
        The number to use, and a note where it is smaller than wanted.
    """
    available = processors()
    if wanted <= available:
        return wanted, None
    return available, f"{wanted} {what} clamped to {available}: this machine has {available} processors"


def learner_device(learners: LearnersSpec, is_one_machine: bool) -> tuple[torch.device, str | None]:
    """Where a learner computes.

    Args:
        is_one_machine: GPUs that are not there are done without, and that is said; on a cluster the pod was given
            what the resource asks for, and a GPU that torch does not see is a mistake.

    Returns:
        The device, and a note where it is less than asked for.

    Raises:
        NoCudaDevice: a GPU was asked for, or given, and torch finds none.
    """
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if learners.device == "cpu":
        return torch.device("cpu"), None
    if not there and learners.device == "cuda":
        raise NoCudaDevice("spec.learners.device: cuda was requested, but torch finds no CUDA device here.")
    if not there and learners.gpus and not is_one_machine:
        raise NoCudaDevice(
            f"spec.learners.gpus is {learners.gpus:g}, and torch finds no CUDA device in the learner's pod: give an "
            "image whose torch is built for CUDA (spec.cluster.image), or set spec.learners.device: cpu."
        )
    note = None
    if learners.gpus > there and is_one_machine:
        found = "this machine has no more" if there else "torch finds no CUDA device here"
        note = f"learners.gpus {learners.gpus:g} clamped to {there}: {found}"
    return torch.device("cuda", torch.cuda.current_device()) if there else torch.device("cpu"), note
