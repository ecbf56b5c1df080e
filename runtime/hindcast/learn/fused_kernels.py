"""Many small tensors: torch's kernels for lists of them, kept busy.

On a GPU such a kernel gives 65,536 elements of one tensor to one block of threads, and a GPU has over a hundred places
for blocks: a network of two layers of 256 leaves all but six empty. Cut into pieces it takes a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ELEMENTS = 8192


def split_into_chunks(*lists: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
    """Views that together are these tensors; on the CPU, and of tensors with gaps, the tensors themselves.

    Args:
        lists: of tensors with the same shapes.
    """
    if not all(each.is_cuda and each.is_contiguous() for tensors in lists for each in tensors):
        return tuple(list(tensors) for tensors in lists)
    return tuple([piece for each in tensors for piece in each.view(-1).split(_ELEMENTS)] for tensors in lists)


def fused_adam(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Adam or AdamW whose step is the fused kernel, on a GPU of pieces, and nothing around it.

    Its state is that of `kind`. On a CPU torch's own step of a small network takes twice as long: it looks for what
    differs in device, tells a profiler, and calls the hooks of a step, which therefore are not called here.
    """
    move: Any = torch._fused_adamw_ if issubclass(kind, torch.optim.AdamW) else torch._fused_adam_

    class Plain(kind):  # type: ignore[misc, valid-type]
        @torch.no_grad()
        def step(self: Any) -> None:
            for group in self.param_groups:
                moved: list[list[Tensor]] = [[] for _ in range(5)]
                steps: list[Tensor] = []
                self._init_group(group, *moved, steps)
                if not steps:  # none of them had a gradient
                    continue
                torch._foreach_add_(steps, 1)
                pieces = split_into_chunks(*(tensors for tensors in moved if tensors))
                beta1, beta2 = group["betas"]
                move(
                    *pieces,
                    *[[]] * (len(moved) - len(pieces)),  # what amsgrad alone has
                    _of_pieces(steps, moved[0], len(pieces[0])),
                    lr=group["lr"],
                    beta1=beta1,
                    beta2=beta2,
                    **{option: group[option] for option in ("weight_decay", "eps", "amsgrad", "maximize")},
                )

        step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it otherwise

    return Plain


def _of_pieces(steps: list[Tensor], tensors: Sequence[Tensor], pieces: int) -> list[Tensor]:
    """Each tensor's step count, as often as it has pieces."""
    if pieces == len(steps):
        return steps
    counts = [len(split_into_chunks([each])[0]) for each in tensors]
    return [step for step, count in zip(steps, counts, strict=True) for _ in range(count)]
