"""Record CartPole-v1 with RLlib 2.60 and given weights: one runner, episode format. Print one JSON line.

    python rllib_record.py WEIGHTS.npz EPISODES

Run by recording.py in a separate Python environment. The rate is the median of three rounds, after one to warm up.
"""

import json
import statistics
import sys
import time

import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main() -> None:
    weights, episodes = dict(np.load(sys.argv[1])), int(sys.argv[2])
    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(batch_mode="complete_episodes", num_env_runners=0)
        .evaluation(
            evaluation_num_env_runners=1, evaluation_duration=episodes, evaluation_duration_unit="episodes"
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .offline_data(output="recorded", output_write_episodes=True, output_max_rows_per_file=episodes)
    )
    algo = config.build_algo()
    load(algo, weights)
    rates, returns = [], []
    for _ in range(4):
        start_time = time.perf_counter()
        results = algo.evaluate()["env_runners"]
        rates.append(results["num_env_steps_sampled"] / (time.perf_counter() - start_time))
        returns.append(results["episode_return_mean"])
    algo.stop()
    print(json.dumps({"steps_per_s": statistics.median(rates[1:]), "return": returns[-1]}))


def load(algo: object, weights: dict) -> None:
    """Load the policy's layers, matched by order: both networks have two hidden layers and a head."""
    module = algo.get_module()
    state_dict = dict(module.state_dict())
    policy_prefixes = ("encoder.actor_encoder", "encoder.encoder", "pi.")
    policy = [name for name in state_dict if name.startswith(policy_prefixes) and "clip_param" not in name]
    policy_names = [name for name in weights if not name.startswith("vf") and "value" not in name]
    for name, source in zip(policy, policy_names, strict=True):
        assert state_dict[name].shape == weights[source].shape, (name, source)
        state_dict[name] = torch.from_numpy(weights[source])
    module.load_state_dict(state_dict)
    state = {"default_policy": {name: value.numpy() for name, value in module.state_dict().items()}}
    algo.eval_env_runner_group.foreach_env_runner(
        lambda runner: runner.set_state({"rl_module": state}), local_env_runner=False
    )
    algo.set_state({"learner_group": {"learner": {"rl_module": state}}})


if __name__ == "__main__":
    main()
