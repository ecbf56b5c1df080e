"""MARWIL as a user would write it (NeurIPS 2018): advantage-weighted imitation, targets over whole episodes."""

import torch
from torch import nn

from hindcast.api.base import Positive
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Losses
from hindcast.learn.gae import window_gae
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.pipeline.needs import Needs


class MARWILOptions(AlgorithmOptions):
    """L = -E[exp(β A / c) log π(a|s)] + k E[A²], A = R_λ - V(s), with c² a moving mean of A²."""

    lr: Schedule = 3e-3
    beta: float = 1.0
    gamma: float = 0.95
    lambda_: float = 0.9
    vf_coeff: float = 0.5
    targets_every: Positive | None = 4


class AdvantageNorm(nn.Module):
    """Holds c² in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("squares", torch.ones(()))


class MARWIL(Algorithm):
    """See `MARWILOptions`."""

    Options = MARWILOptions
    options: MARWILOptions

    def needs(self):
        columns = frozenset({"obs", "actions", "rewards"})
        return Needs(columns, targets=True, targets_every=self.options.targets_every)

    def networks(self, inputs):
        return nn.ModuleDict({"policy": inputs.policy(value=True), "norm": AdvantageNorm()})

    def optimisers(self, nets):
        return {"policy": OptimiserSpec(list(nets.parameters()), self.options.lr)}

    def targets(self, nets, window):
        values = window.map_observations(nets["policy"].compute_values)
        _, returns = window_gae(window, values, self.options.gamma, self.options.lambda_)
        return {"returns": returns}

    def losses(self, nets, batch, step):
        policy, norm = nets["policy"], nets["norm"].squares
        outputs = policy.forward_train(batch)
        advantages = batch["returns"] - outputs[Columns.VF_PREDS]
        logp = policy.distribution(outputs[Columns.ACTION_DIST_INPUTS]).logp(batch[Columns.ACTIONS])
        weights = (self.options.beta * advantages.detach() / norm.sqrt()).clamp(max=5.0).exp()
        policy_loss, vf_loss = -(weights * logp).mean(), advantages.square().mean()
        norm.lerp_(vf_loss.detach(), 0.01)
        return Losses({"policy": policy_loss + self.options.vf_coeff * vf_loss}, {"vf_loss": vf_loss})
