"""Computing an algorithm's targets."""

from __future__ import annotations

import torch
from torch import nn

from hindcast.errors import UserCodeError
from hindcast.learn.algorithm import Algorithm, Tensors
from hindcast.pipeline.window import WindowData
from hindcast.user_code import calling


@torch.no_grad()
def window_targets(algorithm: Algorithm, nets: nn.ModuleDict, window: WindowData) -> Tensors:
    """The algorithm's targets for a window, computed with the networks in evaluation mode.

    Raises:
        UserCodeError: computing them raised, or they are not one for each timestep.
    """
    modes = {module: module.training for module in nets.modules()}
    nets.eval()
    try:
        with calling(f"{type(algorithm).__name__}.targets"):
            targets = algorithm.targets(nets, window)
    finally:
        for module, training in modes.items():
            module.training = training
    for name, column in targets.items():
        if len(column) != window.num_steps:
            raise UserCodeError(
                f"{type(algorithm).__name__}.targets gave {name!r} of shape {list(column.shape)} for a window of "
                f"{window.num_steps:,} timesteps; it must be one for each."
            )
    return targets
