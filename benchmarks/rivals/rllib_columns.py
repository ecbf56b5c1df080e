"""Make episodes of recorded columns as RLlib 2.60's pre-learner does: answer each line with the timesteps per second.

    python rllib_columns.py FILE.parquet ROWS

Run by columns.py in a separate Python environment. The time includes reading the file, but not Ray Data.
"""

import sys
import time

import pyarrow.parquet as pq
import ray.data  # noqa: F401  registers Ray's tensors with Arrow
from ray.data.block import BlockAccessor
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.offline.offline_prelearner import OfflinePreLearner


def main() -> None:
    prelearner = object.__new__(OfflinePreLearner)
    prelearner.config = BCConfig().offline_data(input_compress_columns=[])
    print("ready", flush=True)
    for _ in sys.stdin:
        start_time = time.process_time()
        table = pq.read_table(sys.argv[1], use_threads=False).slice(0, int(sys.argv[2]))
        episodes = prelearner._map_to_episodes(BlockAccessor.for_block(table).to_numpy())["episodes"]
        print(sum(len(episode) for episode in episodes) / (time.process_time() - start_time), flush=True)


if __name__ == "__main__":
    main()
