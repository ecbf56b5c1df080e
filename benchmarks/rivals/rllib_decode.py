"""RLlib 2.60 decodes recorded episodes as its pre-learner does: for each line read, one round's timesteps a second.

    python rllib_decode.py FILE.parquet

Run by decode_messagepack.py in an environment of its own.
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
        steps = sum(len(episode) for episode in episodes)
        print(steps / (time.process_time() - start_time), flush=True)


if __name__ == "__main__":
    main()
