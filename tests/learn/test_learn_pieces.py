from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hindcast.learn import fused_kernels


def _of_7(*lists: list[Tensor]) -> tuple[list[Tensor], ...]:
    """Pieces as on a GPU."""
    return tuple([piece for each in tensors for piece in each.view(-1).split(7)] for tensors in lists)


@pytest.mark.parametrize("cut_by", [_of_7, fused_kernels.split_into_chunks], ids=["pieces", "whole"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}])
def test_a_plain_adam_is_adam(
    kind: Any, options: dict[str, Any], cut_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_kernels, "split_into_chunks", cut_by)
    torch.manual_seed(0)
    whole = [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2))]
    copies = [nn.Parameter(each.detach().clone()) for each in whole]
    one, other = (
        made([{"params": given[:2]}, {"params": given[2:]}], lr=0.01, fused=True, **options)
        for made, given in ((kind, whole), (fused_kernels.fused_adam(kind), copies))
    )
    for _ in range(5):
        for each, its_copy in zip(whole[:2], copies, strict=False):  # the last group has no gradients
            each.grad = torch.randn_like(each)
            its_copy.grad = each.grad.clone()
        one.step()
        other.step()
    torch.testing.assert_close(copies, whole)
    torch.testing.assert_close(other.state_dict()["state"], one.state_dict()["state"])
