"""d3rlpy 2.8.1 updates: for each line "<algorithm> <updates>" read, so many a second.

    python d3rlpy_updates.py BATCHES.npz DEVICE

Run by updates.py in an environment of its own. Batches are ready, as d3rlpy's buffer would make them; all options are
d3rlpy's defaults, the batch of 256 and the networks of two layers of 256 among them; but that on a GPU its updates are
compiled and captured (compile_graph).
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
    answer_updates(lambda *given: algorithm(*given).update, batches_of)


def algorithm(name, columns, device):
    made = replace(ALGORITHMS[name], compile_graph=device != "cpu").create(device=device)
    count = int(columns["chosen"].max()) + 1 if name in DISCRETE else columns["actions"].shape[-1]
    made.create_impl(columns["obs"].shape[2:], count)
    return made


def batches_of(name, columns, _device):
    chosen = name in DISCRETE
    actions = columns["chosen"][..., None].astype(np.float32) if chosen else columns["actions"]
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
