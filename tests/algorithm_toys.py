"""Toy algorithms that tests name as `algorithm_toys:Name`: one for each kind of training item, one with targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hindcast.api.base import Positive
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Losses, ModelInputs, Step, Tensors
from hindcast.learn.batches import masked_mean
from hindcast.learn.gae import window_gae
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.window import WindowData


class ToyOptions(AlgorithmOptions):
    """Options of all toy algorithms."""

    lr: float = 1e-2
    gamma: float = 0.9


class _Toy(Algorithm):
    Options = ToyOptions
    options: Any

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        return nn.ModuleDict({"policy": inputs.policy(value=False)})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        return {"policy": OptimiserSpec(list(nets["policy"].parameters()), self.options.lr)}


class LambdaReturnsOptions(ToyOptions):
    """Options of advantage-weighted imitation with lambda-returns over complete episodes, as in MARWIL."""

    lambda_: float = 0.8
    targets_every: Positive | None = None


class LambdaReturns(_Toy):
    Options = LambdaReturnsOptions

    def needs(self) -> Needs:
        columns = frozenset({"obs", "actions", "rewards"})
        return Needs(columns, targets=True, targets_every=self.options.targets_every)

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        return nn.ModuleDict({"policy": inputs.policy(value=True)})

    def targets(self, nets: nn.ModuleDict, window: WindowData) -> Tensors:
        assert not nets.training and not torch.is_grad_enabled()
        values = window.map_observations(nets["policy"].compute_values)
        _, returns = window_gae(window, values, self.options.gamma, self.options.lambda_)
        return {"value_targets": returns}

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        outputs = nets["policy"].forward_train(batch)
        advantages = batch["value_targets"] - outputs["vf_preds"]
        logp = nets["policy"].distribution(outputs["action_dist_inputs"]).logp(batch["actions"])
        imitation = -(advantages.detach().clamp(-3, 3).exp() * logp).mean()
        return Losses({"policy": imitation + advantages.square().mean()})


class NStepQOptions(ToyOptions):
    """Options of Q-learning with n-step returns and a target network, as in DQN."""

    n_step: Positive = 3


class NStepQ(_Toy):
    Options = NStepQOptions
    target_networks = {"target": "policy"}

    def needs(self) -> Needs:
        columns = frozenset({"obs", "new_obs", "actions", "rewards", "discounts"})
        return Needs(columns, n_step=self.options.n_step, gamma=self.options.gamma)

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        return Losses({"policy": self.errors(nets, batch).square().mean()})

    def errors(self, nets: nn.ModuleDict, batch: Tensors) -> Tensor:
        outputs = _action_outputs(nets["policy"], batch["obs"])
        q = outputs.gather(1, batch["actions"].long().unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            max_next_q = _action_outputs(nets["target"], batch["new_obs"]).amax(1)
        return q - (batch["rewards"] + batch["discounts"] * max_next_q)

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:
        self.update_target_networks(nets, 0.1)


class PrioritisedQ(NStepQ):
    """Draws items by their errors."""

    def needs(self) -> Needs:
        return replace(super().needs(), sampling="prioritized")

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        errors = self.errors(nets, batch)
        return Losses({"policy": (batch["weights"] * errors.square()).mean()}, priorities=errors)


class WithoutPriorities(PrioritisedQ):
    """Returns no priorities."""

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        return NStepQ.losses(self, nets, batch, step)


class OptionsWithoutDefault(ToyOptions):
    """Options, one of them without a default."""

    z: int


class WithRequiredOption(NStepQ):
    Options = OptionsWithoutDefault


class CausalMeanOptions(ToyOptions):
    """Options of imitation from the mean of all observations of a sequence so far."""

    max_seq_len: Positive = 5
    burn_in: int = 2


class CausalMean(_Toy):
    Options = CausalMeanOptions

    def needs(self) -> Needs:
        columns = frozenset({"obs", "actions"})
        return Needs(columns, seq_len=self.options.max_seq_len, burn_in=self.options.burn_in)

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        mask = batch["loss_mask"]
        counts = torch.arange(1, mask.shape[1] + 1).unsqueeze(1)
        means = (batch["obs"].cumsum(1) / counts).flatten(0, 1)
        distribution = nets["policy"].distribution(_action_outputs(nets["policy"], means))
        losses = -distribution.logp(batch["actions"].flatten()).unflatten(0, mask.shape)
        return Losses({"policy": masked_mean(losses, mask)})


def _action_outputs(policy: Any, observations: Tensor) -> Tensor:
    outputs: Tensor = policy.forward_train({"obs": observations})["action_dist_inputs"]
    return outputs
