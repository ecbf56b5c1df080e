"""BC: behaviour cloning, supervised learning of the recorded actions."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Losses, ModelInputs, Step, Tensors
from hindcast.learn.batches import actions_of
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.models.distributions import Actions
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs


class BCOptions(AlgorithmOptions):
    """Behaviour cloning (Pomerleau, NIPS 1988): the policy imitates the recorded actions.

    Stochastic policies minimise the negative log-likelihood, L = -E[log π(a|s)]; deterministic ones the
    squared error, L = E[(π(s) - a)²], averaged over the elements of an action.
    """

    lr: Schedule = 1e-4
    """Learning rate of Adam, or points [[timestep, value], …], joined by lines or as a third item says: line,
    cosine, step."""


class BC(Algorithm):
    """Behaviour cloning; see `BCOptions` for the objective."""

    Options = BCOptions
    options: BCOptions

    def needs(self) -> Needs:
        return Needs(columns=frozenset({Columns.OBS, Columns.ACTIONS}))

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        return nn.ModuleDict({"policy": inputs.policy(value=False)})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        return {"policy": OptimiserSpec(list(nets.parameters()), self.options.lr)}

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:  # noqa: ARG002
        policy = cast(RLModule, nets["policy"])
        distribution = policy.distribution(policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS])
        actions = actions_of(batch)
        loss = distribution.imitation_loss(actions).mean()
        metrics = {"policy_loss": loss}
        with torch.no_grad():
            if policy.action_head.stochastic:
                metrics["entropy"] = distribution.entropy().mean()
            if policy.action_head.discrete:
                metrics["action_accuracy"] = _agreement(distribution.mode(), actions)
        return Losses({"policy": loss}, metrics)


def _agreement(chosen: Actions, recorded: Actions) -> Tensor:
    """Share of single decisions on which both agree."""
    if isinstance(chosen, Tensor) and isinstance(recorded, Tensor):
        return (chosen == recorded).float().mean()
    assert not isinstance(chosen, Tensor) and not isinstance(recorded, Tensor)
    return torch.stack([_agreement(chosen[leaf], recorded[leaf]) for leaf in chosen]).mean()
