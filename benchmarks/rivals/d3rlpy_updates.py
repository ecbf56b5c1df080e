"""Update with d3rlpy 2.8.1: answer each line "<algorithm> <updates>" with the updates per second.

    python d3rlpy_updates.py BATCHES.npz DEVICE

Run by updates.py in a separate Python environment. Batches are prepared, as d3rlpy's buffer would make them. All
options are d3rlpy's defaults, including batches of 256 and networks of two layers of 256, except that on a GPU updates
are compiled and captured (compile_graph).
"""

from dataclasses import replace

import d3rlpy
import numpy as np
import structlog
from d3rlpy.dataset import TransitionMiniBatch
from updates_timing import answer_updates

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
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    answer_updates(lambda *args: make_algorithm(*args).update, make_batches)


def make_algorithm(name, columns, device):
    algo = replace(ALGORITHMS[name], compile_graph=device != "cpu").create(device=device)
    num_actions = int(columns["chosen"].max()) + 1 if name in DISCRETE else columns["actions"].shape[-1]
    algo.create_impl(columns["obs"].shape[2:], num_actions)
    return algo


def make_batches(name, columns, _device):
    is_discrete = name in DISCRETE
    actions = columns["chosen"][..., None].astype(np.float32) if is_discrete else columns["actions"]
    return [
        TransitionMiniBatch(
            observations=columns["obs"][index],
            actions=actions[index],
            rewards=columns["rewards"][index][:, None],
            next_observations=columns["new_obs"][index],
            next_actions=actions[index],
            terminals=columns["terminals"][index][:, None],
            intervals=np.ones((actions.shape[1], 1), np.float32),
            transitions=[],
        )
        for index in range(len(actions))
    ]


if __name__ == "__main__":
    main()
