"""Let RLlib 2.60 pack episodes with ids, times and custom data into OUT.parquet.

Runs in RLlib's environment: `python rllib_details.py OUT.parquet`.
"""

import sys

import gymnasium as gym
import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

CUSTOM_DATA = [
    {},
    {"seed": 3, "tags": ["a", {"b": None}], "score": 0.1, "text": "ä"},
    {
        "image": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "scalar": np.float32(2.5),
        "bytes": b"\x00\xff",
        "complex": 1 - 2j,
        "odd": [float("inf"), -(2**63), 2**64 - 1],
    },
]


def make_episode(index):
    result = SingleAgentEpisode(
        id_=f"e{index}",
        observation_space=gym.spaces.Box(-9, 9, (2,), np.float32),
        action_space=gym.spaces.Discrete(3),
        agent_id=[None, "left", 0][index],
        module_id=[None, "policy", None][index],
        multi_agent_episode_id=[None, "many", "more"][index],
    )
    result.add_env_reset(np.full(2, index, np.float32), {})
    for t in range(4 + index):
        step = np.full(2, t, np.float32), np.int64(t % 3), t / 2, {"t": t} if index else {}
        result.add_env_step(*step, terminated=t == 3 + index)
    result.custom_data.update(CUSTOM_DATA[index])
    return result


def main():
    states = [make_episode(index).get_state() for index in range(3)]
    blobs = [msgpack.packb(state, default=msgpack_numpy.encode) for state in states]
    pq.write_table(pa.table({"item": pa.array(blobs, pa.binary())}), sys.argv[1])
    print(len(blobs))


if __name__ == "__main__":
    main()
