"""Train with a revision of Hindcast, and answer each line with the updates per second of CPU time of an iteration.

    python hindcast_training.py RUNTIME TABLE ALGORITHM UPDATES

RUNTIME is the folder `runtime` of the revision. Networks and batches do not depend on its defaults.
"""

import sys
import time

runtime, table, name, num_updates = sys.argv[1:]
sys.path.insert(0, runtime)

import gymnasium as gym  # noqa: E402
import torch  # noqa: E402

import hindcast  # noqa: E402
from hindcast.api import model as model_options  # noqa: E402

MODEL = {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu"}
OPTIONS = {
    "DecisionTransformer": {
        "context_length": 20,
        "embed_size": 128,
        "num_layers": 3,
        "num_heads": 1,
        "target_return": 1.0,
    },
}


def preset_options():
    """Return the options of the networks that revisions without algorithms' own networks built."""
    norm = {"critics": {"fcnet_use_layernorm": True}} if name in ("ReBRAC", "FQL") else {}
    return {"preset": "rllib", **norm}


def main():
    torch.set_num_threads(1)
    actions = gym.spaces.Discrete(6) if name in ("DQN", "DiscreteCQL") else gym.spaces.Box(-1, 1, (6,))
    has_preset = "preset" in getattr(model_options, "ModelOptions", model_options.ModelSpec).model_fields
    config = (
        getattr(hindcast, f"{name}Config")()
        .environment(observation_space=gym.spaces.Box(-10, 10, (17,)), action_space=actions)
        .training(train_batch_size_per_learner=256, **OPTIONS.get(name, {}))
        .rl_module(model_config=MODEL | (preset_options() if has_preset else {}))
        .offline_data(
            input_=table, ignore_final_observation=True, dataset_num_iters_per_learner=int(num_updates)
        )
    )
    with config.build_algo() as algorithm:
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.process_time()
            algorithm.train()
            print(int(num_updates) / (time.process_time() - start), flush=True)


if __name__ == "__main__":
    main()
