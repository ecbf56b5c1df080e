"""IQL as a user would write it: implicit Q-learning (arXiv 2110.06169), three optimisers, target critics."""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Losses
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.learn.target_networks import frozen_copy, polyak_update
from hindcast.models.networks import next_observations
from hindcast.pipeline.needs import Needs


class IQLOptions(AlgorithmOptions):
    """L_V = E[|τ - 1(u < 0)| u²], u = Q_target - V; L_Q = E[(r + gamma V(s') - Q)²]; L_π = -E[exp(β u) log π]."""

    lr: Schedule = 3e-3
    actor_lr: Schedule = [[0, 3e-3, "cosine"], [100_000, 1e-3]]
    gamma: float = 0.9
    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7
    beta: float = 3.0
    tau: float = 0.05


class IQL(Algorithm):
    """See `IQLOptions`."""

    Options = IQLOptions
    options: IQLOptions

    def needs(self):
        return Needs(columns=frozenset({"obs", "new_obs", "actions", "rewards", "terminateds"}))

    def networks(self, inputs):
        critics = inputs.critics(members=2, layer_norm=True)
        nets = {"policy": inputs.policy(value=False), "value": inputs.state_value(), "critics": critics}
        return nn.ModuleDict({**nets, "targets": frozen_copy(critics)})

    def optimisers(self, nets):
        rates = {"policy": self.options.actor_lr, "value": self.options.lr, "critics": self.options.lr}
        options = {"betas": (0.9, 0.99), "weight_decay": 1e-4}
        return {
            name: OptimiserSpec(list(nets[name].parameters()), lr, "adamw", options)
            for name, lr in rates.items()
        }

    def losses(self, nets, batch, step):
        options = self.options
        with torch.no_grad():
            target_q = nets["targets"](batch).amin(0)
            not_terminated = 1.0 - batch[Columns.TERMINATEDS].float()
            next_v = nets["value"](next_observations(batch))
            td_target = batch[Columns.REWARDS] + options.gamma * not_terminated * next_v
        advantage = target_q - nets["value"](batch)
        weight = torch.where(advantage > 0, options.expectile, 1 - options.expectile)
        policy = nets["policy"]
        distribution = policy.distribution(policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS])
        policy_weight = (options.beta * advantage.detach()).exp().clamp(max=100.0)
        losses = {
            "value": (weight * advantage.square()).mean(),
            "critics": (nets["critics"](batch) - td_target).square().mean(-1).sum(),
            "policy": -(policy_weight * distribution.logp(batch[Columns.ACTIONS])).mean(),
        }
        return Losses(losses, {"advantage": advantage.mean()}, joint=True)

    def after_update(self, nets, step):
        polyak_update(nets["targets"], nets["critics"], self.options.tau)
