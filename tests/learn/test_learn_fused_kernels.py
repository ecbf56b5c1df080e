from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hindcast.learn import fused_kernels


def split_by_7(*lists: list[Tensor]) -> tuple[list[Tensor], ...]:
    """Split tensors into chunks, as on a GPU."""
    return tuple([chunk for tensor in tensors for chunk in tensor.view(-1).split(7)] for tensors in lists)


@pytest.mark.parametrize("split", [split_by_7, fused_kernels.split_into_chunks], ids=["chunks", "no chunks"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}])
def test_fused_adam_equals_adam(
    kind: Any, options: dict[str, Any], split: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_kernels, "split_into_chunks", split)
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2))]
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    options = {"lr": 0.01, "fused": True, **options}
    groups, copied_groups = ([{"params": p[:2]}, {"params": p[2:]}] for p in (parameters, copies))
    expected, actual = kind(groups, **options), fused_kernels.fused_adam(kind)(copied_groups, **options)
    for _ in range(5):
        for parameter, copy in zip(parameters[:2], copies, strict=False):  # the last group has no gradients
            parameter.grad = torch.randn_like(parameter)
            copy.grad = parameter.grad.clone()
        expected.step()
        actual.step()
    torch.testing.assert_close(copies, parameters)
    torch.testing.assert_close(actual.state_dict()["state"], expected.state_dict()["state"])
