"""`ReturnPolicy`: a transformer over returns to go, observations and actions, conditioned on a target return.

Shape suffixes: B = slots or sequences, T = steps of a sequence, K = steps of the context, the current one included,
F = features of an observation, A = features of an action, E = embedding size of a token.
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
from hindcast.models.rl_module import Batch, RLModule, build_free_log_std

_GPT_2_STD = 0.02
_TOKENS_PER_STEP = 3
"""Tokens per step: return to go, observation, action."""


class ReturnPolicy(RLModule):
    """The policy of a decision transformer (arXiv 2106.01345).

    In training it takes sequences with `returns_to_go` `[B, T]`, `actions` and `t` `[B, T]`, and predicts the
    distribution of each step's action from the steps up to it. When it acts, it is conditioned on `target_return` minus
    the rewards received, and its state holds the last K steps.

    Attributes:
        target_return: scalar buffer; NaN until set.
        return_scale: scalar buffer, the divisor of returns at the input; NaN until set.
    """

    sees_rewards: ClassVar[bool] = True
    target_return: Tensor
    return_scale: Tensor

    def setup(  # type: ignore[override]
        self,
        *,
        context: int = 20,
        size: int = 128,
        layers: int = 3,
        heads: int = 1,
        dropout: float = 0.1,
        max_timestep: int = 1000,
        return_scale: float | None = 1000.0,
        target_return: float | None = None,
    ) -> None:
        """Build the layers.

        Args:
            context: K, the number of steps in the context.
            size: E, a multiple of `heads`.
            layers: number of layers of the transformer.
            heads: number of heads of its attention.
            dropout: see `CausalTransformer`.
            max_timestep: number of timestep embeddings; later timesteps use the last one.
            return_scale: divisor of the returns; None leaves it to `set_return_scale`.
            target_return: return to aim for; None leaves it to `raise_target_return`.
        """
        model = self.model_config
        self._context = context
        self.encoder = Encoder(self.observation_space, model)
        self.actions = Features(self.action_space, model, Columns.ACTIONS)
        self.of_observation, self.of_action, self.of_return = (
            linear(size_in, size, 1.0, encoder_initialiser(model))
            for size_in in (self.encoder.output_size, self.actions.output_size, 1)
        )
        self.of_time = nn.Embedding(max_timestep, size)
        nn.init.normal_(self.of_time.weight, std=_GPT_2_STD)
        self.norm = nn.LayerNorm(size)
        self.transformer = CausalTransformer(size, layers, heads, dropout)
        sizes = [size, *model.head_fcnet_hiddens]
        log_std = build_free_log_std(self.action_head, model)
        num_policy_outputs = self.action_head.inputs_size - (0 if log_std is None else log_std.size)
        # A gain of 0.01 as in PolicyModule: the initial policy hardly depends on the inputs.
        self.pi = nn.Sequential(
            *fully_connected(sizes, model, head_initialiser(model)),
            linear(sizes[-1], num_policy_outputs, 0.01, head_initialiser(model)),
            *([] if log_std is None else [log_std]),
        )
        # A fixed scale is an option, and not among the weights.
        scale = torch.tensor(math.nan if return_scale is None else return_scale)
        self.register_buffer("return_scale", scale, persistent=return_scale is None)
        self.register_buffer(
            "target_return", torch.tensor(math.nan if target_return is None else target_return)
        )

    def get_initial_state(self) -> dict[str, Tensor]:
        """Return the state before the first step.

        For each of the K steps, `seen` has the features of the observation, `taken` those of the action, and `returns`
        the return to go; `steps` is the number of steps so far. `actions` (or `actions/…`) is the last action.
        """
        context = self._context
        leaves = flatten_space(self.action_space, Columns.ACTIONS)
        return {
            "seen": torch.zeros(context, self.encoder.output_size),
            "taken": torch.zeros(context, self.actions.output_size),
            "returns": torch.zeros(context),
            "steps": torch.zeros((), dtype=torch.int64),
            **{leaf: _placeholder_action(space) for leaf, space in leaves.items()},
        }

    def state_after(
        self,
        outputs: Mapping[str, Tensor],  # noqa: ARG002
        actions: Mapping[str, Tensor],
        noise: Tensor | None,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        return dict(actions)

    def raise_target_return(self, episode_return: float) -> None:
        """Set the target return to `episode_return` if that is higher, or if there is no target return yet."""
        if not self.target_return >= episode_return:  # true of NaN, the value before the first call
            self.target_return.fill_(episode_return)

    def set_return_scale(self, largest_return: float) -> None:
        """Set the scale to the largest absolute return, or to 1 if that is 0; do nothing if it is set already."""
        if self.return_scale.isnan():
            self.return_scale.fill_(largest_return or 1.0)

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        if len(self._leading_shape(batch)) == 1:
            return self._step(batch)
        action_features, obs_features = self.actions(batch), self.encoder(batch)
        features = self._transform(
            batch[Columns.RETURNS_TO_GO], obs_features, action_features, batch[Columns.T]
        )
        return {Columns.ACTION_DIST_INPUTS: self.pi(features)}

    def _step(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the outputs of single steps `[B, …]`, from the state of the last K steps."""
        state = self.state_before(batch)
        num_steps, previous_action = state["steps"], self.actions(state).unsqueeze(1)
        return_to_go = state["returns"][:, -1] - batch.get(Columns.PREV_REWARDS, 0.0)
        return_to_go = torch.where(num_steps == 0, self.target_return.nan_to_num(0.0), return_to_go)
        returns = _shift_in(state["returns"], return_to_go)
        obs_features = _shift_in(state["seen"], self.encoder(batch))
        action_features = torch.cat([state["taken"][:, :-1], previous_action], 1)
        # The current action is not known yet; the causal mask hides its token.
        action_features = _shift_in(action_features, torch.zeros_like(action_features[:, 0]))
        steps_back = torch.arange(self._context - 1, -1, -1, device=num_steps.device)
        t = num_steps.unsqueeze(1) - steps_back
        # Steps before the episode began have t < 0 and are masked.
        features = self._transform(returns, obs_features, action_features, t.clamp(min=0), is_recorded=t >= 0)
        next_state = {
            **state,
            "seen": obs_features,
            "taken": action_features,
            "returns": returns,
            "steps": num_steps + 1,
        }
        return {
            Columns.ACTION_DIST_INPUTS: self.pi(features[:, -1]),
            **as_leaves(Columns.STATE_OUT, next_state),
        }

    def _transform(
        self,
        returns_BT: Tensor,
        obs_BTF: Tensor,
        actions_BTA: Tensor,
        t_BT: Tensor,
        is_recorded: Tensor | None = None,
    ) -> Tensor:
        """Return `[B, T, E]` features before each action: the transformer's outputs at the observation tokens."""
        time = self.of_time(t_BT.clamp(max=self.of_time.num_embeddings - 1))
        scaled_returns = (returns_BT / self.return_scale.nan_to_num(1.0)).unsqueeze(-1)
        embeddings = (
            self.of_return(scaled_returns),
            self.of_observation(obs_BTF),
            self.of_action(actions_BTA),
        )
        tokens = torch.stack([embedding + time for embedding in embeddings], 2).flatten(1, 2)
        is_recorded = None if is_recorded is None else is_recorded.repeat_interleave(_TOKENS_PER_STEP, 1)
        outputs: Tensor = self.transformer(self.norm(tokens), is_recorded)
        # Observation tokens: their outputs depend on the step's return and observation, but not on its action.
        return outputs[:, 1::_TOKENS_PER_STEP]


def _placeholder_action(space: gym.Space) -> Tensor:
    """Return a valid action in place of the one before an episode's first step, in the dtype of sampled actions."""
    if isinstance(space, gym.spaces.MultiBinary):
        return torch.zeros(space.shape, dtype=torch.int8)
    if np.issubdtype(space.dtype, np.floating):
        return torch.zeros(space.shape or ())
    return torch.as_tensor(getattr(space, "start", 0)).expand(space.shape or ())


def _shift_in(rows_BK: Tensor, last_rows: Tensor) -> Tensor:
    """Drop the first of K rows and append `last_rows`."""
    return torch.cat([rows_BK[:, 1:], last_rows.unsqueeze(1)], 1)


class CausalTransformer(nn.Module):
    """A pre-norm transformer with causal attention (GPT-2; arXiv 1706.03762).

    Initial weights are normal with a standard deviation of 0.02, as GPT-2's, and biases are 0.

    Args:
        size: E, a multiple of `heads`.
        layers: number of layers.
        heads: number of attention heads.
        dropout: dropout rate of embeddings, attention weights and layer outputs in training.
    """

    def __init__(self, size: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(_Layer(size, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, tokens_BLE: Tensor, is_recorded_BL: Tensor | None = None) -> Tensor:
        """Return `[B, L, E]`; position i depends on the recorded tokens up to i. None means that all are recorded."""
        attention_mask = None if is_recorded_BL is None else _attention_mask(is_recorded_BL)
        tokens = self.dropout(tokens_BLE)
        for layer in self.layers:
            tokens = layer(tokens, attention_mask)
        outputs: Tensor = self.norm(tokens)
        return outputs


class _Layer(nn.Module):
    """Attention and then dense layers; the outputs of both are added to their inputs."""

    def __init__(self, size: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._heads, self._dropout = heads, dropout
        self.before_attention, self.before_dense = nn.LayerNorm(size), nn.LayerNorm(size)
        self.projections, self.merge = _linear(size, 3 * size), _linear(size, size)
        self.dense = nn.Sequential(_linear(size, 4 * size), nn.ReLU(), _linear(4 * size, size))
        self.residual_dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, attention_mask: Tensor | None) -> Tensor:
        tokens = tokens + self.residual_dropout(self._attend(self.before_attention(tokens), attention_mask))
        outputs: Tensor = tokens + self.residual_dropout(self.dense(self.before_dense(tokens)))
        return outputs

    def _attend(self, tokens: Tensor, attention_mask: Tensor | None) -> Tensor:
        projections_by_head = self.projections(tokens).unflatten(-1, (3, self._heads, -1))
        query, key, value = projections_by_head.permute(2, 0, 3, 1, 4)
        has_dropout = self.training and torch.is_grad_enabled()
        attention = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            dropout_p=self._dropout if has_dropout else 0.0,
            is_causal=attention_mask is None,
        )
        outputs: Tensor = self.merge(attention.transpose(1, 2).flatten(2))
        return outputs


def _attention_mask(is_recorded_BL: Tensor) -> Tensor:
    """Return the attention mask `[B, 1, L, L]`: each position attends to itself and to earlier recorded tokens."""
    # Each position attends to itself, because a softmax over no tokens would be NaN.
    num_tokens = is_recorded_BL.shape[-1]
    self_mask = torch.eye(num_tokens, dtype=torch.bool, device=is_recorded_BL.device)
    earlier_mask = is_recorded_BL.unsqueeze(1).expand(-1, num_tokens, -1).tril()
    return (earlier_mask | self_mask).unsqueeze(1)


def _linear(size_in: int, size_out: int) -> nn.Linear:
    layer = nn.Linear(size_in, size_out)
    nn.init.normal_(layer.weight, std=_GPT_2_STD)
    nn.init.zeros_(layer.bias)
    return layer
