"""Write what RLlib 2.60 reads from recordings: an .npz file for each folder, with the leaves of each episode.

From columns RLlib makes an episode of each row.

Runs in RLlib's environment: `python rllib_read.py KIND FOLDER OUT.npz [FOLDER OUT.npz …]`; KIND is `episodes` or
`columns`.
"""

import sys
from pathlib import Path

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow.parquet as pq
import ray.data  # noqa: F401  registers Ray's tensor types with Arrow
from ray.data.block import BlockAccessor
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_prelearner import OfflinePreLearner


def leaves_by_name(value, name):
    if isinstance(value, tuple | list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: np.asarray(value)}
    leaves = {}
    for key, child in value.items():
        leaves |= leaves_by_name(child, f"{name}/{key}")
    return leaves


def describe_episode(episode):
    """Return an episode's leaves and flags from RLlib's getters.

    The leaves are stacked here, since RLlib reads tuples back as lists, which it cannot stack.
    """
    columns = {
        "obs": episode.get_observations(),
        "actions": episode.get_actions(),
        "rewards": episode.get_rewards(),
    }
    columns |= {name: buffer.get() for name, buffer in episode.extra_model_outputs.items()}
    arrays = {}
    for name, items in columns.items():
        steps = [leaves_by_name(item, name) for item in items]
        arrays |= {leaf: np.stack([step[leaf] for step in steps]) for leaf in steps[0]}
    arrays["flags"] = np.array([bool(episode.is_terminated), bool(episode.is_truncated)])
    return arrays


def read_episodes(files):
    cells = [cell for file in files for cell in pq.read_table(file)["item"].to_pylist()]
    arrays = {}
    for cell in cells:
        episode = SingleAgentEpisode.from_state(msgpack.unpackb(cell, object_hook=msgpack_numpy.decode))
        arrays |= {f"{episode.id_}|{name}": leaf for name, leaf in describe_episode(episode).items()}
    return arrays


def read_rows(files):
    prelearner = object.__new__(OfflinePreLearner)
    prelearner.config = BCConfig().offline_data()
    arrays, index = {}, 0
    for file in files:
        batch = BlockAccessor.for_block(pq.read_table(file)).to_numpy()
        for episode in prelearner._map_to_episodes(batch)["episodes"]:
            leaves = describe_episode(episode)
            arrays |= {f"{index}|{episode.id_}|{name}": leaf for name, leaf in leaves.items()}
            index += 1
    return arrays


def main():
    read = {"episodes": read_episodes, "columns": read_rows}[sys.argv[1]]
    for folder, out in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        np.savez(out, **read(sorted(Path(folder).rglob("*.parquet"))))
    print("done")


if __name__ == "__main__":
    main()
