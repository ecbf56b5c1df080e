"""Print the public names of RLlib 2.60's offline, connector, module, episode and replay API as one line of JSON.

Runs in RLlib's environment: `python rllib_names.py`.
"""

import inspect
import json
from importlib import import_module

TEXT = """
    rllib rllib.algorithms rllib.algorithms.algorithm rllib.algorithms.algorithm_config rllib.algorithms.bc
    rllib.algorithms.bc.bc_catalog rllib.algorithms.bc.torch.default_bc_torch_rl_module rllib.algorithms.cql
    rllib.algorithms.cql.torch.cql_torch_learner rllib.algorithms.dqn
    rllib.algorithms.dqn.torch.dqn_torch_learner rllib.algorithms.iql
    rllib.algorithms.iql.torch.iql_torch_learner rllib.algorithms.marwil
    rllib.algorithms.marwil.torch.marwil_torch_learner rllib.algorithms.ppo
    rllib.algorithms.ppo.torch.default_ppo_torch_rl_module rllib.algorithms.ppo.torch.ppo_torch_learner
    rllib.algorithms.sac rllib.algorithms.sac.torch.sac_torch_learner rllib.callbacks.callbacks
    rllib.callbacks.utils rllib.connectors.common rllib.connectors.connector_pipeline_v2
    rllib.connectors.connector_v2 rllib.connectors.env_to_module rllib.connectors.env_to_module.frame_stacking
    rllib.connectors.env_to_module.observation_preprocessor rllib.connectors.learner
    rllib.connectors.learner.frame_stacking rllib.connectors.module_to_env rllib.core rllib.core.columns
    rllib.core.learner rllib.core.learner.learner rllib.core.learner.learner_group rllib.core.rl_module
    rllib.core.rl_module.apis rllib.core.rl_module.default_model_config rllib.core.rl_module.multi_rl_module
    rllib.core.rl_module.torch rllib.env rllib.env.env_runner rllib.env.env_runner_group
    rllib.env.multi_agent_episode rllib.env.single_agent_env_runner rllib.env.single_agent_episode
    rllib.env.utils.infinite_lookback_buffer rllib.offline rllib.offline.estimators rllib.offline.io_context
    rllib.offline.offline_data rllib.offline.offline_env_runner rllib.offline.offline_evaluation_runner
    rllib.offline.offline_policy_evaluation_runner rllib.offline.offline_prelearner rllib.policy.sample_batch
    rllib.utils.annotations rllib.utils.metrics rllib.utils.replay_buffers
    rllib.utils.replay_buffers.episode_replay_buffer rllib.utils.replay_buffers.prioritized_episode_buffer
    rllib.utils.typing
"""
MODULES = TEXT.split()
NOT_PUBLIC = {"ACTOR", "ATOMS", "CRITIC", "DEPRECATED_VALUE", "F", "T", "TYPE_CHECKING", "utils"}


def is_public(module, name, value):
    if name.startswith("_") or name in NOT_PUBLIC or inspect.ismodule(value):
        return False
    if hasattr(module, "__all__"):
        return name in module.__all__
    if inspect.isclass(value) or inspect.isfunction(value):
        is_package = hasattr(module, "__path__")
        origin = str(getattr(value, "__module__", ""))
        return origin.startswith("ray.rllib") if is_package else origin == module.__name__
    if module.__name__ == "ray.rllib.utils.typing":
        return getattr(value, "__module__", None) != "typing" or not hasattr(__import__("typing"), name)
    return name.isupper()


def main():
    names = set()
    for path in MODULES:
        module = import_module(f"ray.{path}")
        names |= {name for name, value in vars(module).items() if is_public(module, name, value)}
    print(json.dumps(sorted(names)))


if __name__ == "__main__":
    main()
