"""Toy algorithms that tests name as `algorithm_toys:Name`, for errors of custom algorithms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hindcast.api.base import Positive
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Losses, ModelInputs, Step, Tensors
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.pipeline.needs import Needs


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
        outputs = _action_outputs(nets["policy"], batch["obs"])
        q = outputs.gather(1, batch["actions"].long().unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            max_next_q = _action_outputs(nets["target"], batch["new_obs"]).amax(1)
        errors = q - (batch["rewards"] + batch["discounts"] * max_next_q)
        return Losses({"policy": errors.square().mean()})

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:
        self.update_target_networks(nets, 0.1)


class WithoutPriorities(NStepQ):
    """Draws items by priorities, but returns none."""

    def needs(self) -> Needs:
        return replace(super().needs(), sampling="prioritized")


class OptionsWithoutDefault(ToyOptions):
    """Options, one of them without a default."""

    z: int


class WithRequiredOption(NStepQ):
    Options = OptionsWithoutDefault


class SequencesOptions(ToyOptions):
    """Options of an algorithm on sequences."""

    max_seq_len: Positive = 5
    burn_in: int = 2


class Sequences(NStepQ):
    """Asks for sequences; no test trains it."""

    Options = SequencesOptions

    def needs(self) -> Needs:
        columns = frozenset({"obs", "actions"})
        return Needs(columns, seq_len=self.options.max_seq_len, burn_in=self.options.burn_in)


def _action_outputs(policy: Any, observations: Tensor) -> Tensor:
    outputs: Tensor = policy.forward_train({"obs": observations})["action_dist_inputs"]
    return outputs
