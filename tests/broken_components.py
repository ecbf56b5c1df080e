"""Custom components, each wrong in one way, that tests name as `broken_components:Name`."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

from hindcast import OfflineData, OfflinePreLearner
from hindcast.algorithms.bc import BC, BCOptions
from hindcast.learn.algorithm import Algorithm, Losses
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.pipeline.connectors import BatchConnector, BlockConnector
from hindcast.pipeline.needs import Needs
from hindcast.rllib.connectors.connector_v2 import ConnectorV2, LearnerConnectorPipeline
from hindcast.rllib.connectors.library import default_connectors
from hindcast.rllib.learners import BCTorchLearner


class CriticBC(BC):
    """Behaviour cloning that also trains a critic."""

    def networks(self, inputs):
        return nn.ModuleDict({"policy": inputs.policy(value=False), "critic": inputs.state_value()})

    def optimisers(self, nets):
        return {name: OptimiserSpec(list(net.parameters()), 1e-3) for name, net in nets.items()}

    def losses(self, nets, batch, step):
        losses = super().losses(nets, batch, step)
        return Losses({**losses.losses, "critic": nets["critic"](batch).square().mean()}, losses.metrics)


class ValidAlgorithm(CriticBC):
    """Sets a constant attribute, and trains its critic only in every other update from 6 on."""

    def losses(self, nets, batch, step):
        self.scale = 2.0
        losses = super().losses(nets, batch, step)
        if step.updates < 5 or step.updates % 2:
            return Losses({"policy": self.scale * losses.losses["policy"]})
        return losses


class NaNLoss(CriticBC):
    def losses(self, nets, batch, step):
        losses = super().losses(nets, batch, step).losses
        return Losses({**losses, "critic": losses["critic"] * (float("nan") if step.updates == 4 else 1)})


class WrongShape(CriticBC):
    def losses(self, nets, batch, step):
        return Losses({"critic": nets["critic"](batch).square()})


class LossWithoutParameters(CriticBC):
    def losses(self, nets, batch, step):
        return Losses({"critic": batch["obs"].mean()})


class LossOfOtherNetwork(CriticBC):
    def losses(self, nets, batch, step):
        return Losses({"critic": nets["policy"].forward_train(batch)["action_dist_inputs"].mean()})


class LossOfUnknownOptimiser(CriticBC):
    def losses(self, nets, batch, step):
        return Losses({"critics": nets["critic"](batch).mean()})


class ReturnsDict(CriticBC):
    def losses(self, nets, batch, step):
        return {"critic": nets["critic"](batch).mean()}


class NumberAsLoss(CriticBC):
    def losses(self, nets, batch, step):
        return Losses({"critic": nets["critic"](batch).mean().item()})


class WideMetric(CriticBC):
    def losses(self, nets, batch, step):
        losses = super().losses(nets, batch, step).losses
        return Losses(losses, {"value": nets["critic"](batch)})


class WidePriorities(CriticBC):
    def losses(self, nets, batch, step):
        return Losses(super().losses(nets, batch, step).losses, priorities=batch["obs"])


class NumberAsPriority(CriticBC):
    def losses(self, nets, batch, step):
        return Losses(super().losses(nets, batch, step).losses, priorities=1.0)


class UnusedNetwork(CriticBC):
    def optimisers(self, nets):
        return {"policy": OptimiserSpec(list(nets.parameters()), 1e-3)}

    def losses(self, nets, batch, step):
        return BC.losses(self, nets, batch, step)


class SharedParameters(CriticBC):
    def optimisers(self, nets):
        return {name: OptimiserSpec(list(nets.parameters()), 1e-3) for name in nets}


class NoPolicy(CriticBC):
    def networks(self, inputs):
        return nn.ModuleDict({"actor": inputs.policy(value=False)})


class RaisesInLosses(CriticBC):
    def losses(self, nets, batch, step):
        return batch["rewards"]


class RaisesInStages(CriticBC):
    def losses(self, nets, batch, step):
        yield super().losses(nets, batch, step)
        raise ArithmeticError("between stages")


class RaisesAfterUpdate(CriticBC):
    def after_update(self, nets, step):
        nets["target"].eval()


class ModifiesGraphInPlace(CriticBC):
    def losses(self, nets, batch, step):
        values = nets["critic"](batch).exp()
        loss = values.mean()
        values.mul_(2.0)
        return Losses({"critic": loss})


class AlgorithmWithoutLosses(Algorithm):
    Options = BCOptions
    needs = BC.needs
    networks = BC.networks
    optimisers = BC.optimisers


class ShortTargets(CriticBC):
    def needs(self):
        return Needs(frozenset({"obs", "actions", "rewards"}), targets=True)

    def targets(self, nets, window):
        return {"values": window.columns["rewards"][1:]}


class NumpyTargets(ShortTargets):
    def targets(self, nets, window):
        return {"values": np.zeros(window.num_steps)}


class TensorTargets(ShortTargets):
    def targets(self, nets, window):
        return window.columns["rewards"]


class ChangingTargets(ShortTargets):
    def targets(self, nets, window):
        next(nets["critic"].parameters()).mul_(2.0)
        return {"values": window.columns["rewards"]}


class RaisingTargets(ShortTargets):
    def targets(self, nets, window):
        return {"values": window.columns["values"]}


class RaisesInLoss(BCTorchLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return batch["rewards"].mean()


class WideLoss(BCTorchLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return fwd_out["action_dist_inputs"].mean(-1)


class RaisingConnector(BlockConnector):
    def __call__(self, block, context):
        return block.columns["no_such_column"]


class DropsEpisode(BlockConnector):
    def __call__(self, block, context):
        return block.take(range(block.num_episodes - 1))


class ReturnsColumns(BlockConnector):
    def __call__(self, block, context):
        return block.columns


class NarrowObservations(BlockConnector):
    def __call__(self, block, context):
        return block.with_columns({**block.columns, "obs": block.columns["obs"][:, :3]})


class NoisyConnector(BlockConnector):
    def noise(self, shape):
        raise NotImplementedError

    def __call__(self, block, context):
        obs = block.columns["obs"]
        return block.with_columns({**block.columns, "obs": obs + self.noise(obs.shape).astype(obs.dtype)})


class GlobalNumpyNoise(NoisyConnector):
    def noise(self, shape):
        return np.random.normal(size=shape)


class PythonNoise(NoisyConnector):
    def noise(self, shape):
        return np.full(shape, random.random())


class TorchNoise(NoisyConnector):
    def noise(self, shape):
        return torch.randn(shape).numpy()


class ShortColumn(ConnectorV2):
    columns = ("extra",)

    def __call__(self, *, batch, episodes, **kwargs):
        self.add_n_batch_items(batch, "extra", [1.0], 1, episodes[0])
        return batch


class RaisingEpisodeConnector(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        return episodes[0].no_such_thing


class NoisyEpisodes(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for episode in episodes:
            episode.set_rewards(new_data=random.random(), at_indices=0)
        return batch


class ReturnsNothing(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        self.add_batch_item(batch, "extra", 1.0, episodes[0])


class ChangesEnds(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for episode in episodes:
            self.add_n_batch_items(batch, "terminateds", [True] * len(episode), len(episode), episode)
        return batch


class NoisyRewards(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        batch["default_policy"]["rewards"] = torch.rand(len(batch["default_policy"]["rewards"]))
        return batch


def noisy_pipeline(observation_space, action_space):
    return LearnerConnectorPipeline(connectors=[*default_connectors(), NoisyRewards()])


class HalfBatch(BatchConnector):
    def __call__(self, batch, context):
        return {leaf: tensor[::2] for leaf, tensor in batch.items()}


class ReturnsList(BatchConnector):
    def __call__(self, batch, context):
        return list(batch.values())


class NumpyBatch(BatchConnector):
    def __call__(self, batch, context):
        return {leaf: tensor.numpy() for leaf, tensor in batch.items()}


class NoisyBatch(BatchConnector):
    def __call__(self, batch, context):
        return {**batch, "obs": batch["obs"] + torch.randn(batch["obs"].shape)}


class RaisingBatch(BatchConnector):
    def __call__(self, batch, context):
        return {**batch, "obs": batch["observations"]}


class RaisingPreLearner(OfflinePreLearner):
    def _map_to_episodes(self, block):
        raise LookupError("which episodes?")


class ShorterPreLearner(OfflinePreLearner):
    def _map_to_episodes(self, block):
        return block.take(range(block.num_episodes - 1))


class NoisyPreLearner(OfflinePreLearner):
    def _map_to_episodes(self, block):
        return block.with_columns({**block.columns, "rewards": np.random.normal(size=block.num_steps)})


class NoisyPreLearnerCall(OfflinePreLearner):
    def __call__(self, unit, epoch=0):
        block = super().__call__(unit, epoch)
        return block.with_columns({**block.columns, "obs": block.columns["obs"] * random.random()})


class HalfSample(OfflineData):
    def sample(self, num_samples):
        return super().sample(num_samples // 2)
