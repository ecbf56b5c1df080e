"""RLlib 2.60 makes episodes of recorded columns as its pre-learner does: for each line read, one round's rate.

    python rllib_columns.py FILE.parquet ROWS

Run by columns.py in an environment of its own. Reading the file is included, Ray Data is not.
"""

import sys
import time

import pyarrow.parquet as pq
import ray.data  # noqa: F401  it makes Arrow know Ray's tensors
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
