"""A custom connector, pre-learner and network, written once for the base classes of RLlib and Hindcast.

It imports neither of them, so that it can be imported in both environments.
"""

import numpy as np
import torch
from torch import nn


def make_connector_class(base):
    class ScalingConnector(base):
        def __init__(self, input_observation_space=None, input_action_space=None, *, scale=2.0, **kwargs):
            super().__init__(input_observation_space, input_action_space, **kwargs)
            self.scale = scale

        def __call__(
            self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs
        ):
            assert self.input_observation_space.shape == (4,)
            for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                num_steps = len(episode)
                returns = np.cumsum(np.asarray(episode.get_rewards(slice(0, num_steps)))[::-1])[::-1].copy()
                self.add_n_batch_items(batch, "returns_to_go", returns, num_steps, episode)
                for t in range(num_steps):
                    self.add_batch_item(batch, "number", t, episode)
                    observations = episode.get_observations(t) * np.float32(self.scale)
                    episode.set_observations(new_data=observations, at_indices=t)
            shared_data["scaled"] = True
            return batch

    return ScalingConnector


def make_last_connector_class(base):
    class LogitsConnector(base):
        def __call__(self, *, rl_module, batch, shared_data, **kwargs):
            assert shared_data["scaled"]
            module = rl_module["default_policy"]
            module_batch = batch["default_policy"]
            with torch.no_grad():
                outputs = module.forward_inference({"obs": module_batch["obs"]})
                module_batch["logits"] = outputs["action_dist_inputs"]
            return batch

    return LogitsConnector


def make_network_class(base):
    class Net(base):
        def setup(self, **options):
            self.layer = nn.Linear(4, 2)
            with torch.no_grad():
                self.layer.weight.copy_(torch.arange(8.0).reshape(2, 4) / 8)
                self.layer.bias.fill_(0.25)

        def _forward(self, batch, **kwargs):
            return {"action_dist_inputs": self.layer(batch["obs"])}

    return Net


def make_prelearner_class(base, episode_class):
    class HalvingPreLearner(base):
        def _map_to_episodes(self, batch, to_numpy=False, **kwargs):
            episodes = []
            for eps_id in dict.fromkeys(batch["eps_id"]):
                rows = np.flatnonzero(batch["eps_id"] == eps_id)
                episode = episode_class(
                    id_=str(eps_id),
                    observations=[*batch["obs"][rows], batch["new_obs"][rows[-1]]],
                    actions=list(batch["actions"][rows]),
                    rewards=list(batch["rewards"][rows]),
                    terminated=bool(batch["terminateds"][rows[-1]]),
                    len_lookback_buffer=0,
                )
                episode.to_numpy()
                episodes.append(episode)
            return {"episodes": episodes}

        def __call__(self, batch):
            result = super().__call__(batch)
            return {**result, "default_policy/rewards": result["default_policy/rewards"] / 2}

    return HalvingPreLearner
