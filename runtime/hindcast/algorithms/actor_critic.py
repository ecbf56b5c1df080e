"""Bases of algorithms that train a policy and critics on transitions, with target networks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hindcast.api.base import NonNegative, Positive
from hindcast.api.spelling import YamlWords
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Fraction, Step, Tensors
from hindcast.learn.schedules import Schedule
from hindcast.models.networks import combine_members
from hindcast.pipeline.needs import Needs, transitions

_SUBSET: Final = "target_critics"
"""Column of a batch: the indices of the critics that an update's targets use."""


class ActorCriticOptions(AlgorithmOptions):
    """Options of algorithms that train a policy and critics with target networks."""

    train_batch_size_per_learner: Positive = 256
    """Timesteps in one learner's batch; the global batch is this times the number of learners."""
    actor_lr: Schedule = 3e-4
    """Learning rate of the policy (Adam): a number, or a schedule [[timestep, value], …]. A third item of a point says
    how the value changes up to the next point: Line (the default), Cosine or Step."""
    critic_lr: Schedule = 3e-4
    """Learning rate of the critics: a number or a schedule."""
    gamma: Fraction = 0.99
    """Discount factor."""
    n_step: Positive = 1
    """Steps n of the critics' targets: r is then the discounted sum of n rewards, s' the state after them, and the
    discount gammaⁿ. More steps carry rewards back faster, but add the bias of the recorded actions in between."""
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Target network update rate: target ← (1 - tau)·target + tau·network."""


class EnsembleOptions(ActorCriticOptions):
    """Options of algorithms with any number of critics."""

    num_critics: Positive = 2
    """Number of critics; each has a target network."""
    q_aggregation: Annotated[Literal["min", "mean"], YamlWords("Min", "Mean")] = "min"
    """How the values of critics are combined, in their targets and in the policy's loss: Min where values overestimate
    returns. SAC-N (arXiv 2110.01548) is SAC with 10 to 500 critics and Min."""
    q_subset: NonNegative = Field(default=0, json_schema_extra={"x-at-most": "numCritics"})
    """Number of target critics, drawn anew in each update, that are combined in the targets; the policy then follows
    the mean of all critics (REDQ, arXiv 2101.05982; RLPD, arXiv 2302.02948: 2 of 10). 0 is all."""


class ActorCritic(Algorithm):
    """Trains a policy and critics on transitions; the target networks move after every update, unless overridden."""

    is_capturable = True
    target_networks: ClassVar[Mapping[str, str]] = MappingProxyType({"target_critics": "critics"})
    options: ActorCriticOptions

    def needs(self) -> Needs:
        return transitions(self.options.gamma, n_step=self.options.n_step)

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:  # noqa: ARG002
        self.update_target_networks(nets, self.options.tau)


class EnsembleActorCritic(ActorCritic):
    """Combines the values of any number of critics."""

    options: EnsembleOptions

    def draw_subset(self, batch: Tensors, step: Step) -> Tensors:
        """Return the batch with the critics of this update's targets, `[qSubset]` int64; unchanged if all are used."""
        num_critics, size = self.options.num_critics, self.options.q_subset
        if size in (0, num_critics):
            return batch
        ranks = torch.rand(num_critics, generator=step.generator, device=step.generator.device)
        return {**batch, _SUBSET: ranks.topk(size).indices}

    def combine_targets(self, batch: Tensors, target_q: Tensor) -> Tensor:
        """Combine the values `[E, ...]` of target critics; `batch` is that of `draw_subset`."""
        if _SUBSET in batch:
            target_q = target_q.index_select(0, batch[_SUBSET])
        return combine_members(target_q, self.options.q_aggregation)

    def combine(self, q: Tensor) -> Tensor:
        """Combine the values `[E, ...]` of critics in the policy's loss."""
        return combine_members(q, "mean" if self.options.q_subset > 0 else self.options.q_aggregation)
