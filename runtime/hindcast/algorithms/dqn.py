"""DQN: deep Q-learning on recorded or sampled transitions; and discrete CQL, which penalises unrecorded actions."""

from __future__ import annotations

from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hindcast.api.base import Positive
from hindcast.api.option_types import ChanceSchedule
from hindcast.episodes.action_kinds import action_problem
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.learn.algorithm import (
    Algorithm,
    AlgorithmOptions,
    Critic,
    Fraction,
    Losses,
    ModelInputs,
    NonNegative,
    Step,
    Tensors,
)
from hindcast.learn.batches import batch_mean, compute_td_target, prepare_sequences
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule, ScheduledValue, is_constant, value_at
from hindcast.models.greedy_policy import GreedyPolicy
from hindcast.models.networks import ActionValues, gather_values, next_observations, quantile_mean
from hindcast.pipeline.needs import Needs, transitions

_AFTER_SCHEDULE = 2**63
"""Timesteps at which every schedule has ended."""
_MAX_ERROR_WEIGHT = 0.9
"""Weight of the largest TD error in the priority of a sequence, η of R2D2."""


class DQNOptions(AlgorithmOptions):
    """Deep Q-learning (Mnih et al., Nature 2015), for one discrete action or several at once.

    With the target network Q̄, the discounted sum R of the next nStep rewards, and the state s' and discount g after
    them (g = 0 where the episode terminated): L = E[w·huber(R + g·Q̄(s', a') - Q(s, a))], a' = argmax Q(s', ·)
    (arXiv 1509.06461), or argmax Q̄(s', ·) without doubleQ. With numQuantiles above 1, Q predicts quantiles of the
    return and the loss is the quantile Huber loss (arXiv 1710.10044). The weights w are 1, or the importance weights of
    prioritizedReplay (arXiv 1511.05952).

    Defaults are RLlib's, with four exceptions. The target network follows by Polyak averaging with every update instead
    of a copy every 500 steps: no interval has to be tuned to the data's size. A batch has 256 timesteps instead of 32,
    for fewer updates per pass over the data. Timesteps are taken once per epoch instead of by priority, which also
    works for data larger than memory. Gradients are not clipped (RLlib: to a norm of 40), as the Huber loss limits
    those of large errors. nStep 3 learns faster: in 2,000 updates on CartPole recordings it reaches a return of 487,
    the defaults reach 181.
    """

    train_batch_size_per_learner: Positive = 256
    """Timesteps in one learner's batch; the global batch is this times the number of learners."""
    lr: Schedule = 5e-4
    """Learning rate of Adam: a number, or a schedule [[timestep, value], …]. A third item of a point says how the
    value changes up to the next point: Line (the default), Cosine or Step."""
    gamma: Fraction = 0.99
    """Discount factor."""
    n_step: Positive = 1
    """Steps of the n-step return."""
    double_q: bool = True
    """Double Q-learning: Q selects the next action, Q̄ evaluates it."""
    dueling: bool = True
    """Dueling network: state value plus action advantages (arXiv 1511.06581)."""
    num_quantiles: Positive = 1
    """Quantiles of the return learned for each action; 1 learns the mean."""
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Target network update rate: Q̄ ← (1 - tau)·Q̄ + tau·Q; 1 copies."""
    target_network_update_freq: Positive = 1
    """Updates between two updates of the target network."""
    prioritized_replay: bool = False
    """Draw timesteps in proportion to their last TD errors instead of once per epoch, or sequences if the policy is
    recurrent. The data must be resident."""
    prioritized_replay_alpha: NonNegative = Field(
        default=0.6, json_schema_extra={"x-only-with": "prioritizedReplay"}
    )
    """Exponent of the priorities: 0 draws uniformly."""
    prioritized_replay_beta: Schedule = Field(
        default=0.4, json_schema_extra={"x-only-with": "prioritizedReplay"}
    )
    """Exponent of the importance weights: 1 corrects the bias fully. A number, or a schedule [[timestep, value], …]
    over the trained timesteps; the paper's rises from 0.4 to 1 at the end of the training."""
    epsilon: ChanceSchedule = [[0.0, 1.0], [10_000.0, 0.05]]
    """Probability of a random action when exploring: a number, or a schedule [[timestep, value], …] over the sampled
    timesteps. Without a sampler, only a later recording with this policy explores, with the schedule's last value."""


class DQN(Algorithm):
    """DQN; see `DQNOptions` for the objective."""

    Options: ClassVar[type[AlgorithmOptions]] = DQNOptions
    is_capturable = True
    kinds = frozenset({"OfflineTraining", "OfflineRecording"})
    can_train_online = True
    can_train_recurrent = True
    has_own_policy = True
    actions = "discrete"
    target_networks = {"target": "policy.values"}
    compiled_methods: ClassVar[tuple[str, ...]] = ("losses",)
    options: DQNOptions

    def needs(self) -> Needs:
        options, beta = self.options, self.options.prioritized_replay_beta
        return transitions(
            options.gamma,
            n_step=options.n_step,
            sampling="prioritized" if options.prioritized_replay else "epochs",
            alpha=options.prioritized_replay_alpha,
            # With a schedule, the losses raise the weights to the scheduled exponent (see `Needs`).
            beta=beta if isinstance(beta, float) else 1.0,
        )

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        options, name = self.options, type(self).__name__
        model = inputs.model.for_network("policy")
        is_recurrent = model.recurrent != "none"
        if problem := action_problem(name, "discrete", inputs.action_space, is_recurrent=is_recurrent):
            raise SpecError(f"{problem}.", field="spec.algorithm")
        if model.module_class is not None:
            raise SpecError(
                f"{name} builds its policy from action values: leave moduleClass out.", field="spec.model"
            )
        module_options = {"dueling": options.dueling, "quantiles": options.num_quantiles}
        policy = GreedyPolicy(
            inputs.observation_space,
            inputs.action_space,
            model.model_copy(update={"module_options": module_options}),
        )
        # The value at the end of the schedule, because trainings without a sampler never call `before_play`.
        policy.epsilon.fill_(value_at(options.epsilon, _AFTER_SCHEDULE))
        nets = nn.ModuleDict({"policy": policy})
        if options.prioritized_replay and not is_constant(options.prioritized_replay_beta):
            nets["beta"] = ScheduledValue(options.prioritized_replay_beta)
        return nets

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        return {"policy": OptimiserSpec(list(nets["policy"].parameters()), self.options.lr)}

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        q_network = cast(GreedyPolicy, nets["policy"]).values
        batch = prepare_sequences(batch, self.options.n_step)
        quantiles = q_network.quantiles(batch)[0]  # [B, n, num_quantiles]: n actions
        recorded_quantiles = gather_values(quantiles, q_network.indices(batch[Columns.ACTIONS]))
        td_target = self._td_target(q_network, cast(ActionValues, nets["target"]), batch)
        errors = quantile_huber(recorded_quantiles, td_target)
        if self.options.prioritized_replay:
            weights = batch[Columns.WEIGHTS].reshape(-1, *[1] * (errors.dim() - 1))
            errors = errors * (weights ** nets["beta"](step.clock) if "beta" in nets else weights)
        td_loss = batch_mean(errors, batch)
        action_values, q = quantile_mean(quantiles), quantile_mean(recorded_quantiles)
        metrics = {"td_loss": td_loss, "mean_q": batch_mean(q, batch)}
        priorities = None
        if self.options.prioritized_replay:
            priorities = item_priorities((quantile_mean(td_target) - q).detach(), batch)
        loss = td_loss + self._penalty(batch, action_values, q, metrics)
        return Losses({"policy": loss}, metrics, priorities=priorities)

    def update_kind(self, updates: int) -> bool:
        """Return True if the update after `updates` updates moves the target network."""
        return (updates + 1) % self.options.target_network_update_freq == 0

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:
        if self.update_kind(step.updates):
            self.update_target_networks(nets, self.options.tau)

    def critic(self, nets: nn.ModuleDict) -> Critic:
        return cast(GreedyPolicy, nets["policy"]).values.min_values

    def before_play(self, nets: nn.ModuleDict, timesteps: int) -> None:
        cast(GreedyPolicy, nets["policy"]).epsilon.fill_(value_at(self.options.epsilon, timesteps))

    @torch.no_grad()
    def _td_target(self, q_network: ActionValues, target_network: ActionValues, batch: Tensors) -> Tensor:
        """Return the TD targets `[B, num_quantiles]` of the quantiles."""
        next_obs = next_observations(batch)
        next_quantiles = target_network.quantiles(next_obs)[0]  # [B, n, num_quantiles]
        # Double Q-learning: Q selects the action, Q̄ evaluates it.
        selection_q = q_network(next_obs)[0] if self.options.double_q else quantile_mean(next_quantiles)
        best_quantiles = gather_values(next_quantiles, selection_q.argmax(-1))
        return compute_td_target(batch, best_quantiles.movedim(-1, 0)).movedim(0, -1)

    def _penalty(
        self,
        batch: Tensors,  # noqa: ARG002
        action_values: Tensor,  # noqa: ARG002
        q: Tensor,  # noqa: ARG002
        metrics: dict[str, Tensor],  # noqa: ARG002
    ) -> Tensor | float:
        """Return a term that is added to the loss.

        Args:
            batch: the batch.
            action_values: `[B, n]` Q of all actions.
            q: `[B]` Q of the recorded actions.
            metrics: metrics of the update; may be extended.
        """
        return 0.0


class DiscreteCQLOptions(DQNOptions):
    """Conservative Q-learning, CQL(H) of arXiv 2006.04779, for one discrete action or several at once: DQN with a
    penalty on the values of actions outside the data.

    L = L_DQN + minQWeight·E[log Σₐ exp Q(s, a) - Q(s, a_recorded)]; L_DQN and the other options are DQN's.
    The default of minQWeight is d3rlpy's.
    """

    min_q_weight: NonNegative = 1.0
    """Weight of the penalty: larger for expert data, smaller for diverse data."""


class DiscreteCQL(DQN):
    """Discrete CQL; see `DiscreteCQLOptions` for the objective."""

    Options = DiscreteCQLOptions
    kinds = frozenset({"OfflineTraining"})
    options: DiscreteCQLOptions

    def _penalty(
        self, batch: Tensors, action_values: Tensor, q: Tensor, metrics: dict[str, Tensor]
    ) -> Tensor:
        gap = batch_mean(action_values.logsumexp(-1) - q, batch)
        metrics["conservative_gap"] = gap
        return self.options.min_q_weight * gap


def item_priorities(td_errors: Tensor, batch: Tensors) -> Tensor:
    """Return the priorities `[B]` of timesteps, or of sequences from the TD errors `[B, T]` of their steps.

    The priority of a sequence is a mixture of their maximum and their mean (R2D2, ICLR 2019).
    """
    mask = batch.get(Columns.LOSS_MASK)
    if mask is None:
        return td_errors
    sizes = torch.where(mask, td_errors.abs(), 0.0)
    means = sizes.sum(-1) / mask.sum(-1)
    return _MAX_ERROR_WEIGHT * sizes.amax(-1) + (1.0 - _MAX_ERROR_WEIGHT) * means


def quantile_huber(quantiles: Tensor, target_quantiles: Tensor) -> Tensor:
    """Return the quantile Huber loss `[...]` of quantiles against their targets, both `[..., num_quantiles]`.

    It is the loss of arXiv 1710.10044 with κ = 1; for one quantile the Huber loss.
    """
    num_quantiles = quantiles.shape[-1]
    if num_quantiles == 1:
        return functional.huber_loss(quantiles, target_quantiles, reduction="none").squeeze(-1)
    td_errors = target_quantiles.unsqueeze(-2) - quantiles.unsqueeze(-1)
    losses = functional.huber_loss(td_errors, torch.zeros_like(td_errors), reduction="none")
    levels = (torch.arange(num_quantiles, device=quantiles.device) + 0.5).unsqueeze(-1) / num_quantiles
    weights = (levels - (td_errors.detach() < 0).to(td_errors.dtype)).abs()
    return (weights * losses).mean(-1).sum(-1)
