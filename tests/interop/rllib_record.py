"""Let RLlib 2.60 record random episodes in many spaces and in all its formats, to OUT/<case>/<format>/….

Runs in RLlib's environment: `python rllib_record.py OUT`.
"""

import sys

import gymnasium as gym
import numpy as np
import rllib_ray
import tree
from gymnasium import spaces
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.rl_modules.classes.random_rlm import RandomRLModule
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

BOX, DISCRETE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
PAIR = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))
CASES = {
    "box": {"obs": BOX, "act": DISCRETE},
    "float64": {
        "obs": spaces.Box(-1, 1, (3,), np.float64),
        "act": spaces.Box(-2, 2, (2,), np.float32),
        "infos": True,
    },
    "image": {"obs": spaces.Box(0, 255, (4, 5, 3), np.uint8), "act": DISCRETE},
    "discrete": {"obs": spaces.Discrete(5), "act": DISCRETE},
    "multi": {"obs": spaces.MultiBinary(4), "act": spaces.MultiDiscrete([3, 4])},
    "dict": {"obs": spaces.Dict(a=BOX, b=spaces.Discrete(4)), "act": DISCRETE},
    "tuple": {"obs": spaces.Tuple((BOX, spaces.Discrete(4))), "act": PAIR},
}
# Without a maximum number of rows RLlib writes its whole buffer again each time: all but the first
# of these formats contain repeated episodes.
FORMATS = {
    "episodes": {"output_write_episodes": True, "output_max_rows_per_file": 1},
    "episodes-repeated": {"output_write_episodes": True},
    "columns": {"output_write_episodes": False, "output_compress_columns": []},
    "columns-packed": {"output_write_episodes": False},
}


class RandomEnv(gym.Env):
    """Random observations; an episode of 5 to 8 steps, alternately terminated and truncated."""

    def __init__(self, config):
        self.observation_space, self.action_space = config["obs"], config["act"]
        self.has_infos, self.num_episodes = config.get("infos", False), 0

    def reset(self, *, seed=None, options=None):
        self.t, self.num_episodes = 0, self.num_episodes + 1
        return self.observation_space.sample(), {"seed": self.num_episodes} if self.has_infos else {}

    def step(self, action):
        self.t += 1
        info = {"t": self.t, "x": np.float32(2.5), "v": np.arange(2)} if self.has_infos else {}
        is_over, is_even = self.t == 4 + self.num_episodes, self.num_episodes % 2 == 0
        return self.observation_space.sample(), self.t / 2, is_over and is_even, is_over and not is_even, info


class RandomModule(RandomRLModule):
    """Random actions, with the other outputs of a policy."""

    framework = "torch"

    def to(self, device):
        return self

    def _forward(self, batch, **kwargs):
        output = super()._forward(batch, **kwargs)
        rows = len(tree.flatten(batch["obs"])[0])
        output["action_logp"] = -np.random.default_rng(rows).random(rows, dtype=np.float32)
        output["vf_preds"] = np.random.default_rng(rows + 1).random((rows, 2))
        return output


def record(out, case, options):
    config = (
        PPOConfig()
        .environment(RandomEnv, env_config=CASES[case])
        .env_runners(batch_mode="complete_episodes", num_env_runners=0)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=RandomModule))
        .offline_data(output=out, **options)
    )
    runner = OfflineSingleAgentEnvRunner(config=config, worker_index=0)
    for num_episodes in (3, 1):
        runner.sample(num_episodes=num_episodes)
    runner.stop()


def main():
    rllib_ray.start()
    for case in CASES:
        for name, options in FORMATS.items():
            record(f"{sys.argv[1]}/{case}/{name}", case, options)
    print("done")


if __name__ == "__main__":
    main()
