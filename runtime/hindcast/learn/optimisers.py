"""Optimisers of an algorithm: Adam over its own parameters, scheduled learning rates, gradient clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from hindcast.learn.schedules import Schedule, is_constant, value_at

ClipBy = Literal["global_norm", "norm", "value"]
_FUSED_ON = ("cpu", "cuda")


@dataclass(frozen=True)
class OptimiserSpec:
    """What one optimiser trains and how fast.

    Attributes:
        parameters: no parameter belongs to two optimisers.
        lr: constant, or points over trained timesteps.
        weight_decay: decoupled (AdamW, arXiv 1711.05101); 0 is plain Adam (arXiv 1412.6980).
    """

    parameters: Sequence[nn.Parameter]
    lr: Schedule
    weight_decay: float = 0.0


class Optimiser:
    """One optimiser at work: gradients, clipping, step.

    Args:
        spec: parameters and learning rate.
        grad_clip: bound of the gradients; None leaves them.
        grad_clip_by: what is bounded: the norm of all gradients together, each parameter's, or each value.
    """

    def __init__(self, spec: OptimiserSpec, grad_clip: float | None, grad_clip_by: ClipBy) -> None:
        self.parameters = list(spec.parameters)
        self._lr = spec.lr
        self._clip, self._clip_by = grad_clip, grad_clip_by
        fused = all(parameter.device.type in _FUSED_ON for parameter in self.parameters)
        kind = torch.optim.AdamW if spec.weight_decay else torch.optim.Adam
        self.torch = kind(
            self.parameters, lr=value_at(spec.lr, 0), weight_decay=spec.weight_decay, fused=fused
        )

    @property
    def lr(self) -> float:
        """The learning rate in force."""
        return float(self.torch.param_groups[0]["lr"])

    @property
    def gradients(self) -> list[Tensor]:
        """Of the parameters that have one."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def backward(self, loss: Tensor, keep_graph: bool) -> None:
        """Gradients of `loss` for this optimiser's parameters alone."""
        loss.backward(inputs=self.parameters, retain_graph=keep_graph)

    def step(self, timesteps: int) -> Tensor:
        """Clip, move the parameters, drop the gradients.

        Returns:
            L2 norm of all gradients before clipping (scalar tensor; nothing waits for the device).
        """
        if not is_constant(self._lr):
            for group in self.torch.param_groups:
                group["lr"] = value_at(self._lr, timesteps)
        norm = self._clipped()
        self.torch.step()
        self.torch.zero_grad()
        return norm

    def _clipped(self) -> Tensor:
        gradients = self.gradients
        norms = torch._foreach_norm(gradients)
        norm = torch.linalg.vector_norm(torch.stack(norms))
        if self._clip is None:
            return norm
        if self._clip_by == "value":
            torch._foreach_clamp_min_(gradients, -self._clip)
            torch._foreach_clamp_max_(gradients, self._clip)
            return norm
        if self._clip_by == "global_norm":
            torch._foreach_mul_(gradients, _factor(self._clip, norm))
        else:
            torch._foreach_mul_(gradients, [_factor(self._clip, each) for each in norms])
        return norm


def _factor(bound: float, norm: Tensor) -> Tensor:
    return (bound / (norm + 1e-6)).clamp(max=1.0)
