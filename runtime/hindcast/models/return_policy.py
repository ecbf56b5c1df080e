"""`ReturnPolicy`: a transformer over returns to go, observations and actions, which is asked for a return.

Shape suffixes: B = slots or sequences, T = steps of a sequence, K = steps that it looks back on, the present one among
them, F = features of an observation, A = those of an action, E = numbers of a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.models.encoders import Dropout, Encoder, Features, fully_connected, linear
from hindcast.models.initial_weights import encoder_initialiser, head_initialiser
from hindcast.models.recurrent import as_leaves
from hindcast.models.rl_module import Batch, RLModule, free_log_std

_GPT_2_DEVIATION = 0.02
_TOKENS = 3
"""Of each step: the return to go, the observation, the action."""


class ReturnPolicy(RLModule):
    """The policy of a decision transformer (arXiv 2106.01345).

    In training it takes sequences with `returns_to_go` `[B, T]`, `actions` and `t` `[B, T]`, and gives for each step
    the distribution of its action, from the steps up to it. In acting it asks for `target_return`, less the rewards
    received since, and its state holds the last K steps.

    Attributes:
        target_return: scalar buffer; not a number as long as nobody has said.
    """

    sees_rewards: ClassVar[bool] = True
    target_return: Tensor

    def setup(  # type: ignore[override]
        self,
        *,
        context: int = 20,
        size: int = 128,
        layers: int = 3,
        heads: int = 1,
        dropout: float = 0.1,
        max_timestep: int = 1000,
        return_scale: float = 1000.0,
        target_return: float | None = None,
    ) -> None:
        """Build the layers.

        Args:
            context: K.
            size: E, a multiple of `heads`.
            layers: of the transformer.
            heads: of its attention.
            dropout: see `CausalTransformer`.
            max_timestep: steps of an episode that are told apart; later ones count as the last of these.
            return_scale: what returns are divided by.
            target_return: see above.
        """
        model = self.model_config
        self._context, self._return_scale = context, return_scale
        self.encoder = Encoder(self.observation_space, model)
        self.actions = Features(self.action_space, model, Columns.ACTIONS)
        self.of_observation, self.of_action, self.of_return = (
            linear(size_in, size, 1.0, encoder_initialiser(model))
            for size_in in (self.encoder.output_size, self.actions.output_size, 1)
        )
        self.of_time = nn.Embedding(max_timestep, size)
        nn.init.normal_(self.of_time.weight, std=0.02)
        self.norm = nn.LayerNorm(size)
        self.transformer = CausalTransformer(size, layers, heads, dropout)
        sizes = [size, *model.head_fcnet_hiddens]
        log_std = free_log_std(self.action_head, model)
        computed = self.action_head.inputs_size - (0 if log_std is None else log_std.size)
        self.pi = nn.Sequential(
            *fully_connected(sizes, model, head_initialiser(model)),
            linear(sizes[-1], computed, 0.01, head_initialiser(model)),
            *([] if log_std is None else [log_std]),
        )
        self.register_buffer(
            "target_return", torch.tensor(math.nan if target_return is None else target_return)
        )

    def get_initial_state(self) -> dict[str, Tensor]:
        steps = self._context
        leaves = flatten_space(self.action_space, Columns.ACTIONS)
        return {
            "seen": torch.zeros(steps, self.encoder.output_size),
            "taken": torch.zeros(steps, self.actions.output_size),
            "returns": torch.zeros(steps),
            "steps": torch.zeros((), dtype=torch.int64),
            **{leaf: _first(space) for leaf, space in leaves.items()},
        }

    def state_after(
        self,
        outputs: Mapping[str, Tensor],  # noqa: ARG002
        actions: Mapping[str, Tensor],
        noise: Tensor | None,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        return dict(actions)

    def raise_target_return(self, episode_return: Tensor) -> None:
        """Ask for this return from now on, if it is the highest yet."""
        self.target_return.copy_(torch.fmax(self.target_return, episode_return))

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        if len(self._lead(batch)) == 1:
            return self._step(batch)
        taken, seen = self.actions(batch), self.encoder(batch)
        features = self._attended(batch[Columns.RETURNS_TO_GO], seen, taken, batch[Columns.T])
        return {Columns.ACTION_DIST_INPUTS: self.pi(features)}

    def _step(self, batch: Batch) -> dict[str, Tensor]:
        state = self.state_before(batch)
        done, before = state["steps"], self.actions(state).unsqueeze(1)
        left = state["returns"][:, -1] - batch.get(Columns.PREV_REWARDS, 0.0)
        left = torch.where(done == 0, self.target_return.nan_to_num(0.0), left)
        returns = _later(state["returns"], left)
        seen = _later(state["seen"], self.encoder(batch))
        taken = torch.cat([state["taken"][:, :-1], before], 1)
        taken = _later(taken, torch.zeros_like(taken[:, 0]))
        ago = torch.arange(self._context - 1, -1, -1, device=done.device)
        t = done.unsqueeze(1) - ago
        features = self._attended(returns, seen, taken, t.clamp(min=0), known=t >= 0)
        after = {**state, "seen": seen, "taken": taken, "returns": returns, "steps": done + 1}
        return {Columns.ACTION_DIST_INPUTS: self.pi(features[:, -1]), **as_leaves(Columns.STATE_OUT, after)}

    def _attended(
        self,
        returns_BT: Tensor,
        seen_BTF: Tensor,
        taken_BTA: Tensor,
        t_BT: Tensor,
        known: Tensor | None = None,
    ) -> Tensor:
        """`[B, T, E]` what is known before each action."""
        time = self.of_time(t_BT.clamp(max=self.of_time.num_embeddings - 1))
        scaled = (returns_BT / self._return_scale).unsqueeze(-1)
        of_each = (self.of_return(scaled), self.of_observation(seen_BTF), self.of_action(taken_BTA))
        tokens = torch.stack([each + time for each in of_each], 2).flatten(1, 2)
        known = None if known is None else known.repeat_interleave(_TOKENS, 1)
        found: Tensor = self.transformer(self.norm(tokens), known)
        return found[:, 1::_TOKENS]


def _first(space: gym.Space) -> Tensor:
    """An action of the space, of the dtype that distributions give."""
    if isinstance(space, gym.spaces.MultiBinary):
        return torch.zeros(space.shape, dtype=torch.int8)
    if np.issubdtype(space.dtype, np.floating):
        return torch.zeros(space.shape or ())
    return torch.as_tensor(getattr(space, "start", 0)).expand(space.shape or ())


def _later(rows_BK: Tensor, last: Tensor) -> Tensor:
    """One step on: without the first of the K rows, and with another at their end."""
    return torch.cat([rows_BK[:, 1:], last.unsqueeze(1)], 1)


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
