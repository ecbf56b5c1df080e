"""Hindcast: offline reinforcement learning from recorded experience.

The public names are imported when they are first used, so that `import hindcast` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hindcast.episodes.episode import SingleAgentEpisode as SingleAgentEpisode
    from hindcast.models.policy import Policy as Policy
    from hindcast.models.rl_module import RLModule as RLModule
    from hindcast.pipeline.offline_data import OfflineData as OfflineData
    from hindcast.pipeline.prelearner import OfflinePreLearner as OfflinePreLearner
    from hindcast.run.python.algorithm import RunningAlgorithm as RunningAlgorithm
    from hindcast.run.python.config import AlgorithmConfig as AlgorithmConfig
    from hindcast.run.python.config import BCConfig as BCConfig
    from hindcast.run.python.config import PPOConfig as PPOConfig
    from hindcast.run.python.model_config import DefaultModelConfig as DefaultModelConfig
    from hindcast.run.python.user_objects import register_env as register_env

__version__ = "0.1.0"

_WHERE = {
    "AlgorithmConfig": "hindcast.run.python.config",
    "BCConfig": "hindcast.run.python.config",
    "DefaultModelConfig": "hindcast.run.python.model_config",
    "OfflineData": "hindcast.pipeline.offline_data",
    "OfflinePreLearner": "hindcast.pipeline.prelearner",
    "PPOConfig": "hindcast.run.python.config",
    "Policy": "hindcast.models.policy",
    "RLModule": "hindcast.models.rl_module",
    "RunningAlgorithm": "hindcast.run.python.algorithm",
    "SingleAgentEpisode": "hindcast.episodes.episode",
    "register_env": "hindcast.run.python.user_objects",
}
"""Public name -> module that has it."""


def __getattr__(name: str) -> Any:
    if name.isupper() and not name.startswith("_"):
        names = import_module("hindcast.names")
        if hasattr(names, name):
            return getattr(names, name)
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'hindcast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, *(n for n in vars(import_module("hindcast.names")) if n.isupper())])
