"""Write the batch that RLlib 2.60 builds from rows with the classes of customised_components.py.

Runs in RLlib's environment: `python rllib_customised.py ROWS.parquet BATCH.npz`.
"""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_prelearner import OfflinePreLearner

sys.path.insert(0, str(Path(__file__).parent))
import customised_components as components

SPACES = (gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2))


class CustomConnectorConfig(BCConfig):
    def build_learner_connector(self, *args, **kwargs):
        pipeline = super().build_learner_connector(*args, **kwargs)
        pipeline.append(components.make_last_connector_class(ConnectorV2)())
        return pipeline


def main():
    connector_class = components.make_connector_class(ConnectorV2)
    config = (
        CustomConnectorConfig()
        .environment(observation_space=SPACES[0], action_space=SPACES[1])
        .learners(learner_connector=lambda *spaces: connector_class(*spaces, scale=3.0))
    )
    module_spec = RLModuleSpec(
        module_class=components.make_network_class(TorchRLModule),
        observation_space=SPACES[0],
        action_space=SPACES[1],
        model_config={},
    )
    spec = MultiRLModuleSpec(rl_module_specs={"default_policy": module_spec})
    prelearner_class = components.make_prelearner_class(OfflinePreLearner, SingleAgentEpisode)
    learner = prelearner_class(config=config.rl_module(rl_module_spec=spec), spaces=SPACES)
    table = pq.read_table(sys.argv[1])
    batch = learner({name: np.array(table[name].to_pylist()) for name in table.column_names})
    np.savez(sys.argv[2], **{name: np.asarray(value) for name, value in batch.items()})
    print("done")


if __name__ == "__main__":
    main()
