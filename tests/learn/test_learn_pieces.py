from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hindcast.learn import pieces


@pytest.fixture(autouse=True)
def _in_pieces_of_7(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""

    def cut(*lists: list[Tensor]) -> tuple[list[Tensor], ...]:
        return tuple([piece for each in tensors for piece in each.view(-1).split(7)] for tensors in lists)

    monkeypatch.setattr(pieces, "in_pieces", cut)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}])
def test_adam_in_pieces_is_adam(kind: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    whole = [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3))]
    cut = [nn.Parameter(each.detach().clone()) for each in whole]
    one = kind(whole, lr=0.01, fused=True, **options)
    other = pieces.adam_in_pieces(kind)(cut, lr=0.01, fused=True, **options)
    for _ in range(5):
        for each, its_copy in zip(whole, cut, strict=True):
            each.grad = torch.randn_like(each)
            its_copy.grad = each.grad.clone()
        one.step()
        other.step()
    torch.testing.assert_close(cut, whole)
    torch.testing.assert_close(other.state_dict()["state"], one.state_dict()["state"])
