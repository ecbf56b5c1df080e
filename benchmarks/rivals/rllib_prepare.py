"""RLlib 2.60 makes whole episodes of rows: for each line read, one round's rate.

    python rllib_prepare.py FILE.parquet ROWS

Run by prepare.py in an environment of its own. It is what RLlib's documentation has users write: go through the rows,
fill a `SingleAgentEpisode` until one ends, pack its state, write fifty to a file. Rows are in order here, as this way
needs them; the last transition of each episode is kept, as it should be.
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

EPISODES = 50


def write(packed, folder, number):
    pq.write_table(pa.table({"item": packed}), Path(folder) / f"{number:04d}.parquet", compression="gzip")


def prepare(path, rows, folder):
    table = pq.read_table(path, use_threads=False).slice(0, rows)
    packed_episodes, files, episode = [], 0, None
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
        if len(packed_episodes) == EPISODES:
            write(packed_episodes, folder, files)
            packed_episodes, files = [], files + 1
    if packed_episodes:
        write(packed_episodes, folder, files)
    return len(table)


def main() -> None:
    print("ready", flush=True)
    for _ in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            start_time = time.perf_counter()
            rows = prepare(sys.argv[1], int(sys.argv[2]), folder)
            print(rows / (time.perf_counter() - start_time), flush=True)


if __name__ == "__main__":
    main()
