"""Let RLlib 2.60 read packed episodes and pack them again; the cells of both files must be equal byte for byte.

Runs in RLlib's environment: `python rllib_repack.py IN.parquet OUT.parquet`.
"""

import sys

import msgpack
import msgpack_numpy
import pyarrow as pa
import pyarrow.parquet as pq
from ray.rllib.env.single_agent_episode import SingleAgentEpisode


def main():
    cells = pq.read_table(sys.argv[1])["item"].to_pylist()
    states = [msgpack.unpackb(cell, object_hook=msgpack_numpy.decode) for cell in cells]
    episodes = [SingleAgentEpisode.from_state(state) for state in states]
    blobs = [msgpack.packb(episode.get_state(), default=msgpack_numpy.encode) for episode in episodes]
    pq.write_table(pa.table({"item": pa.array(blobs, pa.binary())}), sys.argv[2])
    print(sum(len(episode) for episode in episodes))


if __name__ == "__main__":
    main()
