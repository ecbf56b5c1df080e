"""Decision Transformer: imitation conditioned on the return to go."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, cast

import gymnasium as gym
import numpy as np
from pydantic import Field
from torch import nn

from hindcast.api.base import Positive
from hindcast.api.model import ModelOptions
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import (
    AboveZero,
    Algorithm,
    AlgorithmOptions,
    Losses,
    ModelInputs,
    NonNegative,
    Step,
    Tensors,
)
from hindcast.learn.batches import actions_of, batch_mean, fill_padding
from hindcast.learn.gae import window_gae
from hindcast.learn.model_defaults import float_spaces, has_bounded_actions
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.models.return_policy import ReturnPolicy
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.window import WindowData


class DecisionTransformerOptions(AlgorithmOptions):
    """Decision Transformer (arXiv 2106.01345), for actions of any kind.

    Over sequences of K = contextLength steps, with the return to go R_t (the undiscounted sum of rewards from step t to
    the episode's end), L = E[l(π(· | R_{t-k}, s_{t-k}, a_{t-k}, …, R_t, s_t), a_t)], where l is the negative
    log-likelihood of discrete actions and the squared error of continuous ones (averaged over an action's elements),
    and the context starts at most K - 1 steps before t. The policy acts with R_0 = targetReturn and subtracts the
    rewards it receives. Where an episode was truncated, R counts the recorded rewards.

    A sequence begins at each step of an episode, and the last ones are shorter, as in the paper, which draws them
    with replacement; here each is used once per epoch.

    Defaults are the paper's for locomotion, except for its warm-up of the learning rate over the first 10,000 updates
    (`lr: [[0, 0], [12_800_000, 1.0e-4]]`), which is too long for short trainings.
    """

    train_batch_size_per_learner: Positive = 1280
    """Timesteps in one learner's batch, contextLength per sequence; the global batch is this times the number of
    learners."""
    grad_clip: AboveZero | None = 0.25
    """Gradient clipping threshold, see gradClipBy; null disables clipping."""
    lr: Schedule = 1e-4
    """Learning rate of AdamW: a number, or a schedule [[timestep, value], …]. A third item of a point says how
    the value changes up to the next point: Line (the default), Cosine or Step."""
    weight_decay: NonNegative = 1e-4
    """Weight decay of AdamW (arXiv 1711.05101); 0 is Adam."""
    target_return: float | None = None
    """Return to go at the start of an episode when acting; null is the best return in the training data."""
    return_scale: AboveZero | None = None
    """Divisor of the returns at the network's input, of the order of the largest return; null is the largest return to
    go in the training data. The authors' code uses 1000 for locomotion."""
    context_length: Positive = Field(default=20, json_schema_extra={"x-at-most": "trainBatchSizePerLearner"})
    """Context length K in steps, including the current one."""
    max_timestep: Positive = 1000
    """Number of timestep embeddings; later timesteps use the last one."""
    embed_size: Positive = Field(default=128, json_schema_extra={"x-multiple-of": "numHeads"})
    """Embedding size of a token (each step has three); a multiple of numHeads."""
    num_layers: Positive = 3
    """Transformer layers."""
    num_heads: Positive = 1
    """Attention heads."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout rate of the transformer in training."""


class DecisionTransformer(Algorithm):
    """Decision Transformer; see `DecisionTransformerOptions` for the objective."""

    Options = DecisionTransformerOptions
    is_capturable = True
    has_own_policy = True
    options: DecisionTransformerOptions

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:  # noqa: ARG002
        return ModelOptions(fcnet_hiddens=[], observation_filter="meanStd")

    def needs(self) -> Needs:
        columns = frozenset({Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T})
        return Needs(columns, seq_len=self.options.context_length, stride=1, targets=True)

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        options = self.options
        policy = inputs.own_policy(
            ReturnPolicy,
            "DecisionTransformer",
            auto=_auto_distribution(inputs.action_space),
            context=options.context_length,
            size=options.embed_size,
            layers=options.num_layers,
            heads=options.num_heads,
            dropout=options.dropout,
            max_timestep=options.max_timestep,
            return_scale=options.return_scale,
            target_return=options.target_return,
        )
        return nn.ModuleDict({"policy": policy})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        return {"policy": OptimiserSpec(list(nets.parameters()), self.options.lr)}

    def fit(self, nets: nn.ModuleDict, blocks: Iterable[Block]) -> None:
        options = self.options
        if options.return_scale is not None and options.target_return is not None:
            return
        best_return, largest_return = -math.inf, 0.0
        for block in blocks:
            sums = np.concatenate([[0.0], block.columns[Columns.REWARDS].cumsum(dtype=np.float64)])
            returns_to_go = np.repeat(sums[block.start + block.length], block.length) - sums[:-1]
            best_return = max(best_return, returns_to_go[block.start].max(initial=-math.inf))
            largest_return = max(largest_return, np.abs(returns_to_go).max(initial=0.0))
        policy = cast(ReturnPolicy, nets["policy"])
        if options.return_scale is None:
            policy.set_return_scale(largest_return)
        if options.target_return is None:
            policy.raise_target_return(best_return)

    def targets(self, nets: nn.ModuleDict, window: WindowData) -> Tensors:  # noqa: ARG002
        # With V = 0 and λ = 1 the value targets are the sums of rewards to the episode's end.
        zeros = window.columns[Columns.REWARDS].new_zeros(window.num_steps + len(window.length))
        _, returns = window_gae(window, zeros, gamma=1.0, lambda_=1.0)
        return {Columns.RETURNS_TO_GO: returns}

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:  # noqa: ARG002
        policy, batch = cast(ReturnPolicy, nets["policy"]), fill_padding(batch)
        distribution = policy.distribution(policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS])
        loss = batch_mean(distribution.imitation_loss(actions_of(batch)), batch)
        return Losses({"policy": loss}, {"policy_loss": loss, "target_return": policy.target_return})


def _auto_distribution(action_space: gym.Space) -> str:
    """Return the distribution for `model.distribution: Auto`: without noise for continuous actions, as in the paper."""
    if not float_spaces(action_space):
        return "auto"
    return "squashedDeterministic" if has_bounded_actions(action_space) else "deterministic"
