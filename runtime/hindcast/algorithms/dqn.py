"""DQN: deep Q-learning on recorded or played transitions; and discrete CQL, whose values stay low beside the data."""

from __future__ import annotations

from typing import Annotated, ClassVar, cast

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn
from torch.nn import functional

from hindcast.api.base import Positive
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.learn.algorithm import (
    Algorithm,
    AlgorithmOptions,
    Fraction,
    Losses,
    ModelInputs,
    NonNegative,
    Step,
    Tensors,
)
from hindcast.learn.batches import bootstrapped
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Curve, Schedule, value_at
from hindcast.learn.target_networks import frozen_copy, polyak
from hindcast.models.greedy_policy import GreedyPolicy
from hindcast.models.networks import ActionValues, at_next, mean_of, taken_of
from hindcast.pipeline.needs import Needs, transitions

_FOREVER = 2**63


def _chances(epsilon: Curve) -> Curve:
    values = [epsilon] if isinstance(epsilon, int | float) else [point[1] for point in epsilon]
    if any(float(value) > 1 for value in values):
        raise ValueError(f"epsilon is a probability and must be at most 1, not {epsilon}")
    return epsilon


class DQNOptions(AlgorithmOptions):
    """Deep Q-learning (Mnih et al., Nature 2015), for one discrete action.

    With Q̄, the slow copy of Q, the discounted rewards R of the next nStep steps and the state s' and discount g behind
    them, g being 0 where the episode terminated: L = E[w·huber(R + g·Q̄(s', a') - Q(s, a))], a' = argmax Q(s', ·)
    (arXiv 1509.06461), or argmax Q̄(s', ·) without doubleQ. With numQuantiles over 1, Q are quantiles of the return and
    the loss is the quantile Huber loss (arXiv 1710.10044). Weights w are 1, or of prioritizedReplay (arXiv 1511.05952).

    Defaults are RLlib's, but that the copy follows slowly with every update rather than at once every 500 steps, which
    is as good and needs no number that fits the data's size.
    """

    train_batch_size_per_learner: Positive = 256
    """Timesteps in one learner's batch; the global batch is this times the number of learners."""
    lr: Schedule = 5e-4
    """Learning rate of Adam, or points [[timestep, value], …], joined by lines or as a third item says: line,
    cosine, step."""
    gamma: Fraction = 0.99
    """Discount of future rewards."""
    n_step: Positive = 1
    """Steps whose rewards are taken as recorded before values are trusted."""
    double_q: bool = True
    """Let Q choose the action that Q̄ values."""
    dueling: bool = True
    """Split values into a state's and its actions' advantages (arXiv 1511.06581)."""
    num_quantiles: Positive = 1
    """Quantiles of the return that are learnt for each action; 1 is its mean."""
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """How far Q̄ moves to Q; 1 copies."""
    target_network_update_freq: Positive = 1
    """Updates between two moves of Q̄."""
    prioritized_replay: bool = False
    """Draw timesteps by their last errors, rather than each once an epoch. The data have to be resident."""
    prioritized_replay_alpha: NonNegative = Field(
        default=0.6, json_schema_extra={"x-only-with": "prioritizedReplay"}
    )
    """How much errors count: 0 draws all alike."""
    prioritized_replay_beta: NonNegative = Field(
        default=0.4, json_schema_extra={"x-only-with": "prioritizedReplay"}
    )
    """How much of the bias the weights take back: 1 is all of it."""
    epsilon: Annotated[Schedule, AfterValidator(_chances)] = [[0.0, 1.0], [10_000.0, 0.05]]
    """Chance of any action where the policy explores, or points [[timestep, value], …] over the timesteps that it has
    played. Without a sampler it is the last value, which counts where the policy is recorded."""


class DQN(Algorithm):
    """DQN; see `DQNOptions` for the objective."""

    Options: ClassVar[type[AlgorithmOptions]] = DQNOptions
    kinds = frozenset({"OfflineTraining", "OfflineRecording"})
    live = True
    compiled: ClassVar[tuple[str, ...]] = ("losses",)
    options: DQNOptions

    def needs(self) -> Needs:
        options = self.options
        return transitions(
            options.gamma,
            n_step=options.n_step,
            sampling="prioritized" if options.prioritized_replay else "epochs",
            alpha=options.prioritized_replay_alpha,
            beta=options.prioritized_replay_beta,
        )

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        options, model = self.options, inputs.model
        if model.recurrent != "none" or model.module_class is not None:
            raise SpecError(
                f"spec.model: {type(self).__name__} makes its policy of action values: leave recurrent and moduleClass "
                "out."
            )
        own = {"dueling": options.dueling, "quantiles": options.num_quantiles}
        policy = GreedyPolicy(
            inputs.observation_space, inputs.action_space, model.model_copy(update={"module_options": own})
        )
        policy.epsilon.fill_(value_at(options.epsilon, _FOREVER))
        return nn.ModuleDict({"policy": policy, "target": frozen_copy(policy.values)})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        return {"policy": OptimiserSpec(list(nets["policy"].parameters()), self.options.lr)}

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:  # noqa: ARG002
        values = cast(GreedyPolicy, nets["policy"]).values
        quantiles = values.quantiles(batch)
        taken = values.of(quantiles, batch[Columns.ACTIONS])[0]
        wanted = self._wanted(values, cast(ActionValues, nets["target"]), batch)
        errors = quantile_huber(taken, wanted)
        weighted = errors * batch[Columns.WEIGHTS] if self.options.prioritized_replay else errors
        td_loss = weighted.mean()
        metrics = {"td_loss": td_loss, "mean_q": taken.mean()}
        priorities = (mean_of(wanted) - mean_of(taken)).detach() if self.options.prioritized_replay else None
        loss = td_loss + self._penalty(mean_of(quantiles)[0], mean_of(taken), metrics)
        return Losses({"policy": loss}, metrics, priorities=priorities)

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:
        if (step.updates + 1) % self.options.target_network_update_freq == 0:
            polyak(nets["target"], cast(GreedyPolicy, nets["policy"]).values, self.options.tau)

    def before_play(self, nets: nn.ModuleDict, timesteps: int) -> None:
        cast(GreedyPolicy, nets["policy"]).epsilon.fill_(value_at(self.options.epsilon, timesteps))

    @torch.no_grad()
    def _wanted(self, values: ActionValues, target: ActionValues, batch: Tensors) -> Tensor:
        """`[B, Q]` what the quantiles are regressed on."""
        following = at_next(batch)
        after = target.quantiles(following)[0]
        chooser = values(following)[0] if self.options.double_q else mean_of(after)
        best = taken_of(after, chooser.argmax(-1))
        return bootstrapped(batch, best.T).T

    def _penalty(self, values: Tensor, taken: Tensor, metrics: dict[str, Tensor]) -> Tensor | float:  # noqa: ARG002
        """What is added to the loss.

        Args:
            values: `[B, n]` of all actions.
            taken: `[B]` of the recorded ones.
            metrics: of the update, to be added to.
        """
        return 0.0


class DiscreteCQLOptions(DQNOptions):
    """Conservative Q-learning, CQL(H) of arXiv 2006.04779, for one discrete action: DQN, and a penalty on the values of
    actions that were not recorded.

    L = L_DQN + minQWeight·E[log Σₐ exp Q(s, a) - Q(s, a_recorded)]; L_DQN and the other options are DQN's.
    """

    min_q_weight: NonNegative = 1.0
    """Weight of the penalty. Data of an expert want more of it, broad ones less."""


class DiscreteCQL(DQN):
    """Discrete CQL; see `DiscreteCQLOptions` for the objective."""

    Options = DiscreteCQLOptions
    kinds = frozenset({"OfflineTraining"})
    options: DiscreteCQLOptions

    def _penalty(self, values: Tensor, taken: Tensor, metrics: dict[str, Tensor]) -> Tensor:
        gap = (values.logsumexp(-1) - taken).mean()
        metrics["conservative_gap"] = gap
        return self.options.min_q_weight * gap


def quantile_huber(taken: Tensor, wanted: Tensor) -> Tensor:
    """`[B]` the quantile Huber loss of `taken` against `wanted`, `[B, Q]` both; with Q = 1 the Huber loss."""
    count = taken.shape[-1]
    if count == 1:
        return functional.huber_loss(taken, wanted, reduction="none").squeeze(-1)
    gaps = wanted.unsqueeze(-2) - taken.unsqueeze(-1)
    losses = functional.huber_loss(gaps, torch.zeros_like(gaps), reduction="none")
    levels = (torch.arange(count, device=taken.device) + 0.5).unsqueeze(-1) / count
    weights = (levels - (gaps.detach() < 0).to(gaps.dtype)).abs()
    return (weights * losses).mean(-1).sum(-1)
