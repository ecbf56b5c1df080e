"""Base of algorithms that train a policy and critics on transitions, with target networks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from hindcast.api.base import Positive
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Fraction, Step
from hindcast.learn.schedules import Schedule
from hindcast.pipeline.needs import Needs, transitions


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
    discount gammaⁿ. More carry rewards back faster, with the bias of the recorded actions in between."""
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Target network update rate: target ← (1 - tau)·target + tau·network."""


class ActorCritic(Algorithm):
    """Trains a policy and critics on transitions; the target networks move after every update, unless overridden."""

    is_capturable = True
    target_networks: ClassVar[Mapping[str, str]] = MappingProxyType({"target_critics": "critics"})
    options: ActorCriticOptions

    def needs(self) -> Needs:
        return transitions(self.options.gamma, n_step=self.options.n_step)

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:  # noqa: ARG002
        self.update_target_networks(nets, self.options.tau)
