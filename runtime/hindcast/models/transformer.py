"""A causal transformer.

Shape suffixes: B = sequences, L = tokens of a sequence, E = numbers of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hindcast.models.encoders import Dropout

_GPT_2_DEVIATION = 0.02


class CausalTransformer(nn.Module):
    """Layers of attention to earlier tokens and of two dense layers, each normalised before (GPT-2; arXiv 1706.03762).

    Weights begin normal with a deviation of 0.02, as GPT-2's, and biases at 0.

    Args:
        size: E.
        layers: how many.
        heads: of attention; E is a multiple of them.
        dropout: share of tokens' numbers, and of attention, that training leaves out.
    """

    def __init__(self, size: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(_Layer(size, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, tokens_BLE: Tensor, known_BL: Tensor | None = None) -> Tensor:
        """`[B, L, E]`, of which position i depends on the tokens up to i that are known; None: all are."""
        allowed = None if known_BL is None else _allowed(known_BL)
        tokens = self.dropout(tokens_BLE)
        for layer in self.layers:
            tokens = layer(tokens, allowed)
        normalised: Tensor = self.norm(tokens)
        return normalised


class _Layer(nn.Module):
    def __init__(self, size: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._heads, self._dropout = heads, dropout
        self.before_attention, self.before_dense = nn.LayerNorm(size), nn.LayerNorm(size)
        self.projections, self.merge = _linear(size, 3 * size), _linear(size, size)
        self.dense = nn.Sequential(_linear(size, 4 * size), nn.ReLU(), _linear(4 * size, size))
        self.left_out = Dropout(dropout)

    def forward(self, tokens: Tensor, allowed: Tensor | None) -> Tensor:
        tokens = tokens + self.left_out(self._attended(self.before_attention(tokens), allowed))
        moved: Tensor = tokens + self.left_out(self.dense(self.before_dense(tokens)))
        return moved

    def _attended(self, tokens: Tensor, allowed: Tensor | None) -> Tensor:
        by_head = self.projections(tokens).unflatten(-1, (3, self._heads, -1))
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        leaves_out = self.training and torch.is_grad_enabled()
        found = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            dropout_p=self._dropout if leaves_out else 0.0,
            is_causal=allowed is None,
        )
        merged: Tensor = self.merge(found.transpose(1, 2).flatten(2))
        return merged


def _allowed(known_BL: Tensor) -> Tensor:
    """`[B, 1, L, L]` whether a position looks at a token: an earlier one that is known, and always itself."""
    length = known_BL.shape[-1]
    own = torch.eye(length, dtype=torch.bool, device=known_BL.device)
    earlier = known_BL.unsqueeze(1).expand(-1, length, -1).tril()
    return (earlier | own).unsqueeze(1)


def _linear(size_in: int, size_out: int) -> nn.Linear:
    layer = nn.Linear(size_in, size_out)
    nn.init.normal_(layer.weight, std=_GPT_2_DEVIATION)
    nn.init.zeros_(layer.bias)
    return layer
