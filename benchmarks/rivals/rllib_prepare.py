"""Make episodes of rows as RLlib 2.60's documentation does: answer each line with the rows per second.

    python rllib_prepare.py FILE.parquet ROWS

Run by prepare.py in a separate Python environment. It follows the documentation's example: add rows to a
`SingleAgentEpisode` until it ends, pack its state, and write fifty states to a file. Rows are in order, which this
requires; unlike in the example, the last transition of each episode is kept.
"""

import sys
import tempfile
import time
from pathlib import Path

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

EPISODES_PER_FILE = 50


def write(packed, folder, file_index):
    pq.write_table(pa.table({"item": packed}), Path(folder) / f"{file_index:04d}.parquet", compression="gzip")


def prepare(path, num_rows, folder):
    table = pq.read_table(path, use_threads=False).slice(0, num_rows)
    packed_episodes, num_files, episode = [], 0, None
    for row in table.to_pylist():
        if episode is None:
            episode = SingleAgentEpisode(id_=row["eps_id"])
            episode.add_env_reset(np.array(row["obs"], np.float32))
        episode.add_env_step(
            np.array(row["new_obs"], np.float32),
            row["actions"],
            row["rewards"],
            terminated=row["terminateds"],
            truncated=row["truncateds"],
        )
        if not episode.is_done:
            continue
        packed_episodes.append(msgpack.packb(episode.get_state(), default=msgpack_numpy.encode))
        episode = None
        if len(packed_episodes) == EPISODES_PER_FILE:
            write(packed_episodes, folder, num_files)
            packed_episodes, num_files = [], num_files + 1
    if packed_episodes:
        write(packed_episodes, folder, num_files)
    return len(table)


def main() -> None:
    print("ready", flush=True)
    for _ in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            start_time = time.perf_counter()
            num_rows = prepare(sys.argv[1], int(sys.argv[2]), folder)
            print(num_rows / (time.perf_counter() - start_time), flush=True)


if __name__ == "__main__":
    main()
