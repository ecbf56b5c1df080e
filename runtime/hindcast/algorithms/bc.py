"""BC: behaviour cloning, supervised learning of the recorded actions."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Losses, ModelInputs, Step, Tensors
from hindcast.learn.batches import actions_of, batch_mean, fill_padding
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.models.distributions import Actions
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs


class BCOptions(AlgorithmOptions):
    """Behaviour cloning (Pomerleau, NIPS 1988): the policy imitates the recorded actions.

    Stochastic policies minimise the negative log-likelihood, L = -E[log π(a|s)]; deterministic policies the
    squared error, L = E[(π(s) - a)²], averaged over the elements of an action. A recurrent policy learns from
    sequences; the loss is averaged over their steps, excluding padding and burn-in.

    Defaults are RLlib's, except that a batch has 1024 timesteps instead of 2000, for more updates per pass over the
    data.
    """

    lr: Schedule = 1e-4
    """Learning rate of Adam: a number, or a schedule [[timestep, value], …]. A third item of a point says how the
    value changes up to the next point: Line (the default), Cosine or Step."""


class BC(Algorithm):
    """Behaviour cloning; see `BCOptions` for the objective."""

    Options = BCOptions
    is_capturable = True
    can_train_recurrent = True
    compiled_methods: ClassVar[tuple[str, ...]] = ("losses",)
    options: BCOptions

    def needs(self) -> Needs:
        return Needs(columns=frozenset({Columns.OBS, Columns.ACTIONS}))

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        return nn.ModuleDict({"policy": inputs.policy(value=False)})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        return {"policy": OptimiserSpec(list(nets.parameters()), self.options.lr)}

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:  # noqa: ARG002
        policy, batch = cast(RLModule, nets["policy"]), fill_padding(batch)
        distribution = policy.distribution(policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS])
        actions = actions_of(batch)
        losses = distribution.imitation_loss(actions)
        loss = batch_mean(losses, batch)
        metrics = {"policy_loss": loss}
        # Metrics need no gradients.
        with torch.no_grad():
            if policy.action_head.is_stochastic:
                metrics["entropy"] = batch_mean(distribution.entropy(), batch)
            if policy.action_head.is_discrete:
                accuracy = _agreement(distribution.mode(), actions, losses.shape)
                metrics["action_accuracy"] = batch_mean(accuracy, batch)
        return Losses({"policy": loss}, metrics)


def _agreement(modes: Actions, recorded_actions: Actions, shape: torch.Size) -> Tensor:
    """Return the fraction `[*shape]` of each action's elements that equal the recorded ones; leaves count equally."""
    if isinstance(modes, Tensor) and isinstance(recorded_actions, Tensor):
        return (modes == recorded_actions).float().reshape(*shape, -1).mean(-1)
    assert not isinstance(modes, Tensor) and not isinstance(recorded_actions, Tensor)
    return torch.stack([_agreement(modes[leaf], recorded_actions[leaf], shape) for leaf in modes]).mean(0)
