"""Update with RLlib 2.60: answer each line "<algorithm> <updates>" with the updates per second.

    python rllib_updates.py BATCHES.npz DEVICE

Run by updates.py in a separate Python environment. `Learner.update` is timed with prepared batches and networks of
two layers of 256. All other options are RLlib's defaults, except that CQL has no warm-up, and that critics, which have
one such network for observations and one for actions, do not have two more layers after both.
"""

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.cql import CQLConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.iql import IQLConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from updates_timing import answer_updates

CONFIGS = {"BC": BCConfig, "IQL": IQLConfig, "CQL": CQLConfig, "SAC": SACConfig, "DQN": DQNConfig}
OPTIONS = {"CQL": {"bc_iters": 0, "num_actions": 10}}
MODEL = DefaultModelConfig(fcnet_hiddens=[256, 256], fcnet_activation="relu", fusionnet_hiddens=[])
DISCRETE = ("DQN",)
MODULE = "default_policy"


def main() -> None:
    answer_updates(make_update, make_batches)


def make_update(name, columns, _device):
    num_actions = columns["actions"].shape[-1]
    action_space = (
        gym.spaces.Discrete(num_actions)
        if name in DISCRETE
        else gym.spaces.Box(-1, 1, (num_actions,), np.float32)
    )
    observation_space = gym.spaces.Box(-np.inf, np.inf, columns["obs"].shape[2:], np.float32)
    config = (
        CONFIGS[name]()
        .environment(observation_space=observation_space, action_space=action_space)
        .rl_module(model_config=MODEL)
        .training(**OPTIONS.get(name, {}))
    )
    learner = config.build_learner(spaces={MODULE: (observation_space, action_space)})
    return lambda batch: learner.update(batch=batch)


def make_batches(name, columns, device):
    def to_tensor(values):
        return torch.from_numpy(values).to(device)

    batches = []
    for index in range(len(columns["obs"])):
        num_rows = columns["rewards"].shape[1]
        batch = {
            "obs": to_tensor(columns["obs"][index]),
            "new_obs": to_tensor(columns["new_obs"][index]),
            "actions": to_tensor(columns["chosen" if name in DISCRETE else "actions"][index]),
            "rewards": to_tensor(columns["rewards"][index]),
            "terminateds": to_tensor(columns["terminals"][index].astype(bool)),
            "truncateds": to_tensor(np.zeros(num_rows, bool)),
            "weights": to_tensor(np.ones(num_rows, np.float32)),
            "n_step": to_tensor(np.ones(num_rows, np.float32)),
        }
        batches.append(MultiAgentBatch({MODULE: SampleBatch(batch)}, env_steps=num_rows))
    return batches


if __name__ == "__main__":
    main()
