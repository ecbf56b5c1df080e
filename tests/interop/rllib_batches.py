"""Write what RLlib 2.60 reads from SampleBatch files, with its JSON reader and as episodes, to two .npz files.

Runs in RLlib's environment: `python rllib_batches.py FOLDER READER.npz [EPISODES.npz]`.
"""

import sys
from pathlib import Path

import numpy as np
import ray
import rllib_ray
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.offline.json_reader import JsonReader
from ray.rllib.offline.offline_prelearner import OfflinePreLearner
from rllib_read import describe_episode

NON_LEAF_COLUMNS = ("eps_id", "t", "obs", "new_obs", "terminateds", "truncateds")


def read_with_json_reader(files):
    arrays = {}
    for batch in JsonReader(files).read_all_files():
        eps_id = batch["eps_id"][0]
        leaves = {name: batch[name] for name in batch if name not in NON_LEAF_COLUMNS}
        leaves["obs"] = np.concatenate([batch["obs"], batch["new_obs"][-1:]])
        leaves["flags"] = np.array([batch["terminateds"][-1], batch["truncateds"][-1]])
        arrays |= {f"{eps_id}|{name}": leaf for name, leaf in leaves.items()}
    return arrays


def read_as_episodes(files):
    rllib_ray.start()
    prelearner = object.__new__(OfflinePreLearner)
    prelearner.config = BCConfig().offline_data(input_read_sample_batches=True)
    batch = ray.data.read_json(files).take_batch(10_000)
    episodes = prelearner._map_sample_batch_to_episode(batch, to_numpy=True)["episodes"]
    arrays = {}
    for episode in episodes:
        arrays |= {f"{episode.id_}|{name}": leaf for name, leaf in describe_episode(episode).items()}
    return arrays


def main():
    files = sorted(map(str, Path(sys.argv[1]).glob("*.json")))
    np.savez(sys.argv[2], **read_with_json_reader(files))
    for episodes_file in sys.argv[3:]:
        np.savez(episodes_file, **read_as_episodes(files))
    print("done")


if __name__ == "__main__":
    main()
