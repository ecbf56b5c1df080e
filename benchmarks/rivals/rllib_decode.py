"""Decode recorded episodes as RLlib 2.60's pre-learner does: answer each line with the timesteps per second.

    python rllib_decode.py FILE.parquet

Run by decode_messagepack.py in a separate Python environment.
"""

import sys
import time

import msgpack
import msgpack_numpy
import pyarrow.parquet as pq
from ray.rllib.env.single_agent_episode import SingleAgentEpisode


def main() -> None:
    cells = pq.read_table(sys.argv[1])["item"].to_pylist()
    print("ready", flush=True)
    for _ in sys.stdin:
        start_time = time.process_time()
        episodes = [
            SingleAgentEpisode.from_state(msgpack.unpackb(cell, object_hook=msgpack_numpy.decode))
            for cell in cells
        ]
        num_steps = sum(len(episode) for episode in episodes)
        print(num_steps / (time.process_time() - start_time), flush=True)


if __name__ == "__main__":
    main()
