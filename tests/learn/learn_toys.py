"""Small algorithms with torch modules as networks, for tests of the learner."""

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Losses, ModelInputs, new_networks
from hindcast.learn.batches import masked_mean
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.learn.target_networks import frozen_copy, polyak_update
from hindcast.pipeline.needs import Needs

INPUTS = ModelInputs(
    gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2), ModelSpec(fcnet_hiddens=[8])
)


class ToyOptions(AlgorithmOptions):
    lr: Schedule = 0.1


class Regression(Algorithm):
    """Fits y = w x + b with one optimiser."""

    Options = ToyOptions
    kinds = frozenset({"OfflineTraining"})

    def needs(self):
        return Needs(columns=frozenset({"obs"}))

    def networks(self, inputs):
        return nn.ModuleDict({"policy": nn.Linear(3, 1)})

    def optimisers(self, nets):
        return {"policy": OptimiserSpec(list(nets.parameters()), self.options.lr)}

    def losses(self, nets, batch, step):
        error = nets["policy"](batch["obs"]).squeeze(-1) - batch["y"]
        return Losses({"policy": error.square().mean()}, {"error": error.abs().mean()})


class MaskedRegression(Regression):
    """`Regression` over masked sequences."""

    def needs(self):
        return Needs(columns=frozenset({"obs"}), seq_len=4)

    def losses(self, nets, batch, step):
        error = nets["policy"](batch["obs"]).squeeze(-1) - batch["y"]
        return Losses({"policy": masked_mean(error.square(), batch["loss_mask"])})


class ActorCritic(Algorithm):
    """Two optimisers over one graph, noise in the loss, dropout, a target network."""

    Options = ToyOptions
    kinds = frozenset({"OfflineTraining"})

    def needs(self):
        return Needs(columns=frozenset({"obs"}))

    def networks(self, inputs):
        critic = nn.Linear(4, 1)
        actor = inputs.policy(value=False)
        return nn.ModuleDict(
            {"policy": actor, "critic": critic, "target": frozen_copy(critic), "dropout": nn.Dropout(0.2)}
        )

    def optimisers(self, nets):
        return {
            "actor": OptimiserSpec(list(nets["policy"].parameters()), self.options.lr),
            "critic": OptimiserSpec(list(nets["critic"].parameters()), 0.01),
        }

    def losses(self, nets, batch, step):
        noise = 0.1 * torch.randn(batch["y"].shape, generator=step.generator)
        outputs = nets["policy"].forward_train(batch)["action_dist_inputs"]
        action = outputs[:, :1].tanh()
        value = nets["critic"](torch.cat([nets["dropout"](batch["obs"]), action], -1)).squeeze(-1)
        with torch.no_grad():
            target_value = nets["target"](torch.cat([batch["obs"], action], -1)).squeeze(-1)
            td_target = 0.9 * target_value + batch["y"] + noise
        losses = {"actor": -value.mean(), "critic": (value - td_target).square().mean()}
        return Losses(losses, {"value": value.mean()})

    def after_update(self, nets, step):
        polyak_update(nets["target"], nets["critic"], 0.005)


def make_networks(algorithm, seed=0):
    """Return new networks for `INPUTS`."""
    return new_networks(algorithm, INPUTS, seed)


def make_batch(seed, size=32):
    """Return `size` timesteps with a linear target `y`."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(size, 3, generator=generator)
    return {"obs": obs, "y": obs @ torch.tensor([1.0, -2.0, 0.5]) + 0.3, "actions": (obs[:, 0] > 0).long()}


def make_sequences(seed, count=8):
    """Return `count` sequences of 4 timesteps, padded after 1 to 4 steps."""
    steps = make_batch(seed, 4 * count)
    length = 1 + torch.arange(count) % 4
    mask = torch.arange(4) < length[:, None]
    return {name: tensor.unflatten(0, (count, 4)) for name, tensor in steps.items()} | {"loss_mask": mask}
