"""d3rlpy 2.8.1 updates: for each line "<algorithm> <updates>" read, so many a second.

    python d3rlpy_updates.py BATCHES.npz DEVICE

Run by updates.py in an environment of its own. Batches are ready, as d3rlpy's buffer would make them; all options are
d3rlpy's defaults (nothing compiled), the batch of 256 and the networks of two layers of 256 among them.
"""

import sys
import time

import d3rlpy
import numpy as np
import structlog
import torch
from d3rlpy.dataset import TransitionMiniBatch

ALGORITHMS = {
    "BC": d3rlpy.algos.BCConfig(policy_type="stochastic"),
    "IQL": d3rlpy.algos.IQLConfig(),
    "CQL": d3rlpy.algos.CQLConfig(),
    "TD3BC": d3rlpy.algos.TD3PlusBCConfig(),
    "SAC": d3rlpy.algos.SACConfig(),
    "DQN": d3rlpy.algos.DoubleDQNConfig(),
    "DiscreteCQL": d3rlpy.algos.DiscreteCQLConfig(),
}
DISCRETE = ("DQN", "DiscreteCQL")


def main() -> None:
    torch.set_num_threads(1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    columns, device = dict(np.load(sys.argv[1])), sys.argv[2]
    made = {}
    print("ready", flush=True)
    for line in sys.stdin:
        name, updates = line.split()
        if name not in made:
            made[name] = algorithm(name, columns, device)
        learner, batches = made[name], batches_of(columns, name in DISCRETE)
        clock = time.process_time if device == "cpu" else time.perf_counter
        begun = clock()
        for number in range(int(updates)):
            learner.update(batches[number % len(batches)])
        print(int(updates) / (clock() - begun), flush=True)


def algorithm(name, columns, device):
    made = ALGORITHMS[name].create(device=device)
    count = int(columns["chosen"].max()) + 1 if name in DISCRETE else columns["actions"].shape[-1]
    made.create_impl(columns["obs"].shape[2:], count)
    return made


def batches_of(columns, discrete):
    actions = columns["chosen"][..., None].astype(np.float32) if discrete else columns["actions"]
    return [
        TransitionMiniBatch(
            observations=columns["obs"][number],
            actions=actions[number],
            rewards=columns["rewards"][number][:, None],
            next_observations=columns["new_obs"][number],
            next_actions=actions[number],
            terminals=columns["terminals"][number][:, None],
            intervals=np.ones((actions.shape[1], 1), np.float32),
            transitions=[],
        )
        for number in range(len(actions))
    ]


if __name__ == "__main__":
    main()
