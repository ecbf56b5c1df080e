"""Write the batches of RLlib 2.60 for the pipelines of connector_cases.py.

Runs in RLlib's environment: `python rllib_connectors.py BATCHES.npz`.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from ray.rllib.connectors import common, learner
from ray.rllib.connectors.env_to_module import FlattenObservations
from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

sys.path.insert(0, str(Path(__file__).parent))
import connector_cases as cases


class ValueModule(TorchRLModule, ValueFunctionAPI):
    def setup(self):
        pass


def make_module(space):
    spec = RLModuleSpec(
        module_class=cases.make_value_network(ValueModule),
        observation_space=space,
        action_space=cases.ACTIONS,
        model_config={},
    )
    return MultiRLModuleSpec(rl_module_specs={"default_policy": spec}).build()


def main():
    library = SimpleNamespace(
        **vars(common), **{name: value for name, value in vars(learner).items() if name not in vars(common)}
    )
    library.FlattenObservations, library.FrameStackingLearner = FlattenObservations, FrameStackingLearner
    batches = {name: cases.run_case(name, library, SingleAgentEpisode, make_module) for name in cases.CASES}
    arrays = {f"{name}/{column}": array for name, batch in batches.items() for column, array in batch.items()}
    np.savez(sys.argv[1], **arrays)
    print("done")


if __name__ == "__main__":
    main()
