"""FQL: flow Q-learning, with a one-step policy distilled from a flow-matching behaviour policy."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from hindcast.algorithms.actor_critic import EnsembleActorCritic, EnsembleOptions
from hindcast.api.base import Positive
from hindcast.api.model import LayerOptions, ModelOptions
from hindcast.api.spelling import YamlWords
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Critic, Losses, ModelInputs, NonNegative, Step, Tensors
from hindcast.learn.batches import compute_td_target, fill_padding
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.models.flow_policy import OneStepPolicy, VectorField
from hindcast.models.networks import Critics, next_observations
from hindcast.pipeline.needs import Needs, transitions


class FQLOptions(EnsembleOptions):
    """Flow Q-learning (arXiv 2502.02538), for bounded continuous actions, scaled to ±1.

    A vector field v is trained by flow matching to transport normal noise x to recorded actions a, which can model any
    action distribution; the policy μ maps noise z to an action in one step, distilled from v̂(s, z), the result of
    integrating v from z over flowSteps steps. With critics Q, target critics Q̄, d = 1 where the episode
    terminated, t uniform, and z normal:
    L_v = E[(v(s, (1 - t)·x + t·a, t) - (a - x))²]; L_Q = Σᵢ E[(r + gamma·(1 - d)·Q̄(s', μ(s', z)) - Qᵢ(s, a))²];
    L_μ = E[alpha·(μ(s, z) - v̂(s, z))² - w·Q(s, μ(s, z))], w = 1 / mean|Q| with normalizeQLoss, otherwise 1. Squares are
    averaged over an action's elements; Q in L_μ is the mean of the critics, Q̄ their qAggregation. L_Q is the sum over
    both critics where the authors' code takes their mean, half the sum: with Adam the steps are the same.

    With actionChunk = h above 1 (arXiv 2507.07969), a stands for the h actions from s on, which the policy chooses at
    once and executes in sequence: r is their discounted sum of rewards, s' the state after them, and the discount is
    gammaʰ (of nStep steps, if these are more). Chunks cut short by an episode's end train the flow only, with the
    actions they have; in the means, the rest counts as 0.

    A greedy action is the best by the critics (best-of-N of arXiv 2507.07969) of the half of actionSamples actions
    μ(s, z) that are closest to each other; the values of z are drawn once. The action of a mean z, and isolated ones,
    may lie between the modes, where no action was recorded. The authors' code of FQL plays a new z at each step
    instead: `evaluation: {explore: true}`.

    Defaults are the authors'. The critics' layer normalisation precedes the activation, in the authors' code it follows
    it.
    """

    train_batch_size_per_learner: Positive = 256
    """Timesteps in one learner's batch, with the actionChunk - 1 steps after each; the global batch is this times the
    number of learners."""
    actor_lr: Schedule = 3e-4
    """Learning rate of μ and v (Adam): a number, or a schedule [[timestep, value], …]. A third item of a point says
    how the value changes up to the next point: Line (the default), Cosine or Step."""
    alpha: NonNegative = 10.0
    """Weight of the distillation loss relative to the critics: larger values stay closer to the data. The one option to
    tune per task, over powers of ten for different reward scales."""
    normalize_q_loss: bool = False
    """Divide the Q term of the policy loss by the mean absolute Q, so that alpha does not depend on the reward
    scale."""
    flow_steps: Positive = 10
    """Euler steps of the flow."""
    q_aggregation: Annotated[Literal["min", "mean"], YamlWords("Min", "Mean")] = "mean"
    """How the target critics are combined, and the critics that choose a greedy action: use Min where values
    overestimate returns."""
    action_chunk: Positive = 1
    """Actions chosen at once: above 1 for sparse rewards and temporally extended behaviour."""
    action_samples: Positive = 32
    """Number of draws of z among which the critics choose a greedy action; 1 always plays the same z."""


class FQL(EnsembleActorCritic):
    """FQL; see `FQLOptions` for the objective."""

    Options = FQLOptions
    averages_sequences = True
    can_train_online = True
    has_own_policy = True
    distributions = ("auto",)
    actions = "continuous"
    target_networks = {"target_critics": "policy.critics"}
    options: FQLOptions

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:  # noqa: ARG002
        # Layer normalisation keeps the critics' values from diverging.
        return ModelOptions(
            fcnet_hiddens=[512, 512, 512, 512],
            fcnet_activation="gelu",
            critics=LayerOptions(layer_norm=True),
        )

    def needs(self) -> Needs:
        chunk = self.options.action_chunk
        if chunk == 1:
            return super().needs()
        n_step = max(chunk, self.options.n_step)
        return transitions(self.options.gamma, n_step=n_step, seq_len=chunk, stride=1, counts_sequences=True)

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        options = self.options
        layers = inputs.model.for_network("critics").model_dump(include=set(LayerOptions.model_fields))
        policy = inputs.own_policy(
            OneStepPolicy,
            "FQL",
            chunk=options.action_chunk,
            samples=options.action_samples,
            members=options.num_critics,
            aggregation=options.q_aggregation,
            critics=layers,
        )
        behaviour = VectorField(
            inputs.observation_space, policy.action_head.noise_size, inputs.model.for_network("policy")
        )
        return nn.ModuleDict({"policy": policy, "behaviour": behaviour})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        options, policy = self.options, cast(OneStepPolicy, nets["policy"])
        return {
            "policy": OptimiserSpec(list(policy.map.parameters()), options.actor_lr),
            "behaviour": OptimiserSpec(list(nets["behaviour"].parameters()), options.actor_lr),
            "critics": OptimiserSpec(list(_critics(nets).parameters()), options.critic_lr),
        }

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        # The order of the draws is part of the results: TD target, flow, distillation.
        policy, is_recorded = cast(OneStepPolicy, nets["policy"]), recorded_mask(batch)
        batch = keep_first_steps(batch)
        batch = self.draw_subset(batch, step)
        actions = policy.range.to_unit(batch[Columns.ACTIONS])
        q = _critics(nets)(batch)
        td_target = self._td_target(nets, batch, draw_normal_like(actions, step))
        # Chunks that an episode's end cuts short have no n-step return over h steps. They count as 0, so that all
        # losses are means over the same chunks, which several learners can average.
        critic_loss = torch.where(is_recorded.all(-1), (q - td_target).square().sum(0), 0.0).mean()
        flow_loss = torch.where(is_recorded, self._flow_errors(nets, batch, actions, step), 0.0).mean()
        distillation_loss, policy_q = self._distillation_loss(nets, batch, draw_normal_like(actions, step))
        scale = policy_q.detach().abs().mean() if self.options.normalize_q_loss else 1.0
        policy_loss = self.options.alpha * distillation_loss - policy_q.mean() / scale
        metrics = {
            "critic_loss": critic_loss,
            "flow_loss": flow_loss,
            "policy_loss": policy_loss,
            "distillation_loss": distillation_loss,
            "mean_q": q.mean(),
        }
        return Losses({"critics": critic_loss, "behaviour": flow_loss, "policy": policy_loss}, metrics)

    def critic(self, nets: nn.ModuleDict) -> Critic:
        critics = _critics(nets)
        return lambda batch, actions=None: critics(batch, actions).amin(0)

    @torch.no_grad()
    def _td_target(self, nets: nn.ModuleDict, batch: Tensors, noise: Tensor) -> Tensor:
        """Return the critics' TD targets `[B]`."""
        policy, next_obs = cast(OneStepPolicy, nets["policy"]), next_observations(batch)
        actions = policy.range.from_unit(policy.unclipped_actions(next_obs, noise))
        return compute_td_target(
            batch, self.combine_targets(batch, nets["target_critics"](next_obs, actions))
        )

    def _flow_errors(self, nets: nn.ModuleDict, batch: Tensors, actions: Tensor, step: Step) -> Tensor:
        """Return the flow-matching error `[B, h]`, averaged over an action's elements."""
        vector_field, noise = cast(VectorField, nets["behaviour"]), draw_normal_like(actions, step)
        t = torch.rand((len(actions), 1), generator=step.generator, device=actions.device)
        # Flow matching (arXiv 2210.02747): a straight path from noise to action has velocity action - noise.
        x_t = (1.0 - t) * noise + t * actions
        velocity = vector_field(vector_field.features(batch), x_t, t)
        errors = (velocity - (actions - noise)).square()
        return errors.unflatten(-1, (self.options.action_chunk, -1)).mean(-1)

    def _distillation_loss(self, nets: nn.ModuleDict, batch: Tensors, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distillation loss, a scalar, and Q of the policy's actions `[B]`."""
        policy, critics = cast(OneStepPolicy, nets["policy"]), _critics(nets)
        with torch.no_grad():
            flow_actions = cast(VectorField, nets["behaviour"]).flow(batch, noise, self.options.flow_steps)
        actions = policy.unclipped_actions(batch, noise)
        q = critics(batch, policy.range.from_unit(actions)).mean(0)
        return (actions - flow_actions).square().mean(), q


def _critics(nets: nn.ModuleDict) -> Critics:
    """Return the critics, which are a part of the policy: it acts by their values."""
    return cast(Critics, nets["policy"].critics)


def recorded_mask(batch: Tensors) -> Tensor:
    """Return the mask `[B, h]` of actions that were recorded; without chunks `[B, 1]`, all true."""
    loss_mask = batch.get(Columns.LOSS_MASK)
    return (
        torch.ones_like(batch[Columns.DISCOUNTS], dtype=torch.bool).unsqueeze(-1)
        if loss_mask is None
        else loss_mask
    )


def keep_first_steps(batch: Tensors) -> Tensors:
    """Reduce each sequence to its first step, which keeps the actions of all steps.

    The n-step return of the first step is that of the whole chunk. Padding is filled, see `fill_padding`. Columns with
    one value per sequence are left out. A batch of timesteps instead of sequences is returned as it is.
    """
    if Columns.LOSS_MASK not in batch:
        return batch
    filled_batch = fill_padding(batch)
    return {
        leaf: column if leaf == Columns.ACTIONS else column[:, 0]
        for leaf, column in filled_batch.items()
        if column.dim() > 1
    }


def draw_normal_like(actions: Tensor, step: Step) -> Tensor:
    """Draw standard normal noise of the same shape as `actions`."""
    return torch.randn(actions.shape, generator=step.generator, device=actions.device)
