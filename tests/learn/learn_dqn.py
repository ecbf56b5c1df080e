"""Double DQN with n-step returns and priorities, as a user would write it: one optimiser, a target network."""

import torch
from torch import nn
from torch.nn import functional

from hindcast.api.base import Positive
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Losses
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.learn.target_networks import frozen_copy, polyak_update
from hindcast.models.networks import ActionValues, next_observations
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs


class DQNOptions(AlgorithmOptions):
    """L = E[w huber(R + d Q_target(s', argmax Q(s', ·)) - Q(s, a))] (arXiv 1509.06461, 1511.05952).

    R is the sum of the next n rewards, d the discount after them (0 after a terminal step), w the importance weights.
    """

    lr: Schedule = [[0.0, 3e-3], [50_000.0, 1e-3, "step"]]
    gamma: float = 0.9
    tau: float = 0.05
    n_step: Positive = 3
    prioritized: bool = True


class GreedyPolicy(RLModule):
    """Takes the action of the highest value: the values are the logits."""

    def setup(self):
        self.values = ActionValues(self.observation_space, self.action_space, self.model_config)

    def _forward(self, batch):
        return {Columns.ACTION_DIST_INPUTS: self.values(batch)[0]}


class DQN(Algorithm):
    """See `DQNOptions`."""

    Options = DQNOptions
    options: DQNOptions

    def needs(self):
        options = self.options
        columns = frozenset({"obs", "new_obs", "actions", "rewards", "discounts"})
        sampling = "prioritized" if options.prioritized else "epochs"
        return Needs(columns, n_step=options.n_step, gamma=options.gamma, sampling=sampling)

    def networks(self, inputs):
        policy = GreedyPolicy(inputs.observation_space, inputs.action_space, inputs.model)
        return nn.ModuleDict({"policy": policy, "target": frozen_copy(policy.values)})

    def optimisers(self, nets):
        return {"policy": OptimiserSpec(list(nets["policy"].parameters()), self.options.lr, "rmsprop")}

    def losses(self, nets, batch, step):
        q_network = nets["policy"].values
        next_obs = next_observations(batch)
        with torch.no_grad():
            best_actions = q_network(next_obs).argmax(-1, keepdim=True)
            next_q = nets["target"](next_obs).gather(-1, best_actions).squeeze(-1)
            td_target = batch[Columns.REWARDS] + batch[Columns.DISCOUNTS] * next_q
        q = q_network.gather(q_network(batch), batch[Columns.ACTIONS])  # [1, B]: the network has one member
        losses = functional.smooth_l1_loss(q, td_target.expand_as(q), reduction="none")
        if not self.options.prioritized:
            return Losses({"policy": losses.mean()}, {"q": q.mean()})
        loss = (batch[Columns.WEIGHTS] * losses).mean()
        return Losses({"policy": loss}, {"q": q.mean()}, priorities=(td_target - q)[0])

    def after_update(self, nets, step):
        polyak_update(nets["target"], nets["policy"].values, self.options.tau)
