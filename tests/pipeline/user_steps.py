"""A user's own connectors and classes, named in resources as "user_steps:Name"."""

import numpy as np

from hindcast import OfflineData, OfflinePreLearner
from hindcast.episodes.block import Block
from hindcast.pipeline.connectors import BatchConnector, BlockConnector
from hindcast.rllib.connectors.connector_v2 import ConnectorV2


class Scale(BlockConnector):
    reads = ()

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, block, context):
        return block.with_columns({**block.columns, "obs": block.columns["obs"] * self.factor})


class Noise(BlockConnector):
    scope = "step"
    stochastic = True

    def __call__(self, block, context):
        noise = context.rng.normal(size=block.columns["obs"].shape)
        return block.with_columns({**block.columns, "obs": noise})


class UndeclaredNoise(Noise):
    stochastic = False


class Faulty(BlockConnector):
    def __call__(self, block, context):
        return block.with_columns({"obs": np.reshape(block.columns["obs"], (-1, 7, 11))})


class DropsEpisode(BlockConnector):
    def __call__(self, block, context):
        return block.take(range(block.num_episodes - 1))


class ForgetsFinalObservations(BlockConnector):
    def __call__(self, block, context):
        return block.with_columns({**block.columns, "obs": block.columns["obs"][block.obs_row]})


class RewardsInLists(BlockConnector):
    def __call__(self, block, context):
        return block.with_columns({**block.columns, "rewards": block.columns["rewards"][:, None]})


class ActionsPlusOne(BlockConnector):
    def __call__(self, block, context):
        return block.with_columns({**block.columns, "actions": block.columns["actions"] + 1})


class RunningSum(BatchConnector):
    def __init__(self):
        self.total = 0.0

    def __call__(self, batch, context):
        self.total += float(batch["rewards"].sum())
        return {**batch, "total": batch["rewards"] * 0 + self.total}

    def state(self):
        return {"total": self.total}

    def load(self, state):
        self.total = state["total"]


class NegateRewards(ConnectorV2):
    """In RLlib's form; changes the episodes."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            for t in range(len(episode)):
                episode.set_rewards(new_data=-episode.get_rewards(t), at_indices=t)
        return batch


class ReturnsToGo(ConnectorV2):
    """In RLlib's form; adds a column."""

    columns = ("returns_to_go",)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            returns = np.cumsum(episode.get_rewards()[::-1])[::-1]
            self.add_n_batch_items(batch, "returns_to_go", returns, len(episode), episode)
        return batch


class StepNumber(ConnectorV2):
    columns = ("step_number",)

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in episodes:
            for t in range(len(episode)):
                self.add_batch_item(batch, "step_number", t, episode)
        return batch


class Shift(OfflinePreLearner):
    def __init__(self, *args, by=0, **kwargs):
        super().__init__(*args, **kwargs)
        self.by = by

    def _map_to_episodes(self, block):
        return block.with_columns({**block.columns, "obs": block.columns["obs"] + self.by})


class DoubleRewards(OfflinePreLearner):
    def __call__(self, unit, epoch=0):
        block = super().__call__(unit, epoch)
        return block.with_columns({**block.columns, "rewards": block.columns["rewards"] * 2})


class Broken(OfflinePreLearner):
    def __call__(self, unit, epoch=0) -> Block:
        raise KeyError("sentence")


class OverridesLearnerConnector(OfflinePreLearner):
    def build_learner_connector(self, *args, **kwargs):
        raise AssertionError("called")


class OverridesIterBatches(OfflineData):
    @property
    def default_iter_batches_kwargs(self):
        raise AssertionError("called")


class DoubleSampledRewards(OfflineData):
    def sample(self, num_samples):
        batch = super().sample(num_samples)
        return {**batch, "rewards": batch["rewards"] * 2}
