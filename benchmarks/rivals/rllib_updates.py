"""RLlib 2.60 updates: for each line "<algorithm> <updates>" read, so many a second.

    python rllib_updates.py BATCHES.npz DEVICE

Run by updates.py in an environment of its own. What is timed is `Learner.update` of batches that are ready, with the
networks of two layers of 256; all other options are RLlib's defaults, but that CQL is past its warm-up, and that
critics, which have such networks for observations and for actions each, are left without two more layers behind both.
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
    answer_updates(update_of, batches_of)


def update_of(name, columns, _device):
    actions = columns["actions"].shape[-1]
    space = (
        gym.spaces.Discrete(actions) if name in DISCRETE else gym.spaces.Box(-1, 1, (actions,), np.float32)
    )
    observations = gym.spaces.Box(-np.inf, np.inf, columns["obs"].shape[2:], np.float32)
    config = (
        CONFIGS[name]()
        .environment(observation_space=observations, action_space=space)
        .rl_module(model_config=MODEL)
        .training(**OPTIONS.get(name, {}))
    )
    learner = config.build_learner(spaces={MODULE: (observations, space)})
    return lambda batch: learner.update(batch=batch)


def batches_of(name, columns, device):
    def tensor(values):
        return torch.from_numpy(values).to(device)

    found = []
    for number in range(len(columns["obs"])):
        rows = columns["rewards"].shape[1]
        batch = {
            "obs": tensor(columns["obs"][number]),
            "new_obs": tensor(columns["new_obs"][number]),
            "actions": tensor(columns["chosen" if name in DISCRETE else "actions"][number]),
            "rewards": tensor(columns["rewards"][number]),
            "terminateds": tensor(columns["terminals"][number].astype(bool)),
            "truncateds": tensor(np.zeros(rows, bool)),
            "weights": tensor(np.ones(rows, np.float32)),
            "n_step": tensor(np.ones(rows, np.float32)),
        }
        found.append(MultiAgentBatch({MODULE: SampleBatch(batch)}, env_steps=rows))
    return found


if __name__ == "__main__":
    main()
