"""Computing an algorithm's targets."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hindcast.learn.algorithm import Algorithm, Tensors
from hindcast.models.networks import evaluation_mode
from hindcast.pipeline.window import WindowData
from hindcast.user_code import Misuse, calling


@torch.no_grad()
def window_targets(algorithm: Algorithm, nets: nn.ModuleDict, window: WindowData) -> Tensors:
    """The algorithm's targets for a window, computed with the networks in evaluation mode.

    Raises:
        UserCodeError: computing them raised, or they are not one for each timestep.
    """
    with evaluation_mode(nets), calling(f"{type(algorithm).__name__}.targets", algorithm.targets):
        targets = algorithm.targets(nets, window)
        _refuse_others(targets, window)
        return targets


def _refuse_others(targets: Tensors, window: WindowData) -> None:
    if not isinstance(targets, Mapping):
        raise Misuse(f"gave a {type(targets).__name__}; it must return a dictionary of columns.")
    for name, column in targets.items():
        if not isinstance(column, Tensor) or column.shape[:1] != (window.num_steps,):
            found = (
                f"of shape {[*column.shape]}"
                if isinstance(column, Tensor)
                else f"as a {type(column).__name__}"
            )
            raise Misuse(
                f"gave {name!r} {found} for a window of {window.num_steps:,} timesteps; it must be a tensor with one "
                "row for each."
            )
