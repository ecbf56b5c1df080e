"""Write the transitions that RLlib 2.60's pre-learner makes of a table, of SampleBatch rows and of packed episodes.

Runs in RLlib's environment: `python rllib_prelearners.py ROWS.parquet BATCHES.json ITEMS.parquet OUT`.
"""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pyarrow.json
import pyarrow.parquet as pq
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.offline.offline_prelearner import OfflinePreLearner

SPACES = (gym.spaces.Box(-99, 99, (2,), np.float32), gym.spaces.Discrete(20))


class Packed(OfflinePreLearner):
    """Returns the decoded episodes; RLlib's own class would draw from them without a seed."""

    def _postprocess_and_sample(self, episodes):
        self.episodes = episodes
        return episodes


def make_prelearner(cls=OfflinePreLearner, **options):
    config = BCConfig().environment(observation_space=SPACES[0], action_space=SPACES[1])
    config.offline_data(**options)
    config.rl_module(rl_module_spec=config.get_multi_rl_module_spec(spaces={"default_policy": SPACES}))
    return cls(config=config, spaces=SPACES)


def to_arrays(table):
    """Return columns as Ray Data's batches have them."""
    columns = {name: table[name].to_pylist() for name in table.column_names}
    return {name: np.array(values) if name != "obs" else values for name, values in columns.items()}


def transitions(episodes):
    columns = {name: [] for name in ("obs", "new_obs", "actions", "rewards", "terminateds")}
    for episode in episodes:
        length = len(episode)
        for t in range(length):
            columns["obs"].append(episode.get_observations(t))
            columns["new_obs"].append(episode.get_observations(t + 1))
            columns["actions"].append(episode.get_actions(t))
            columns["rewards"].append(episode.get_rewards(t))
            columns["terminateds"].append(bool(episode.is_terminated) and t == length - 1)
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    order = np.argsort(arrays["actions"], kind="stable")
    return {name: values[order] for name, values in arrays.items()}


def main():
    rows, batches, items, out = map(Path, sys.argv[1:])
    table = to_arrays(pq.read_table(rows))
    table["obs"] = np.array(table["obs"], np.float32)
    np.savez(out / "table.npz", **transitions(make_prelearner()._map_to_episodes(table)["episodes"]))
    fragments = pyarrow.json.read_json(batches)
    columns = {}
    for name in fragments.column_names:
        cells = fragments[name].to_pylist()
        columns[name] = [np.array(cell) if isinstance(cell, list) else cell for cell in cells]
    prelearner = make_prelearner(input_read_sample_batches=True)
    episodes = prelearner._map_sample_batch_to_episode(columns)["episodes"]
    np.savez(out / "sample_batch.npz", **transitions(episodes))
    prelearner = make_prelearner(Packed, input_read_episodes=True)
    prelearner({"item": pq.read_table(items)["item"].to_pylist()})
    np.savez(out / "rllib.npz", **transitions(prelearner.episodes))
    print("done")


if __name__ == "__main__":
    main()
