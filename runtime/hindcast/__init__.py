"""Hindcast: offline reinforcement learning from recorded experience.

The public names are imported when they are first used, so that `import hindcast` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hindcast.version import __version__ as __version__

if TYPE_CHECKING:
    from hindcast.builder.algorithm import RunningAlgorithm as RunningAlgorithm
    from hindcast.builder.algorithm_configs import *  # noqa: F403  generated
    from hindcast.builder.config import AlgorithmConfig as AlgorithmConfig
    from hindcast.builder.model_config import DefaultModelConfig as DefaultModelConfig
    from hindcast.builder.module_spec import RLModuleSpec as RLModuleSpec
    from hindcast.builder.user_objects import register_env as register_env
    from hindcast.episodes.episode import SingleAgentEpisode as SingleAgentEpisode
    from hindcast.models.policy import Policy as Policy
    from hindcast.models.rl_module import RLModule as RLModule
    from hindcast.pipeline.offline_data import OfflineData as OfflineData
    from hindcast.pipeline.prelearner import OfflinePreLearner as OfflinePreLearner
    from hindcast.pipeline.replay_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
    from hindcast.pipeline.replay_buffer import (
        PrioritizedEpisodeReplayBuffer as PrioritizedEpisodeReplayBuffer,
    )
    from hindcast.run.callbacks import Callbacks as Callbacks

_WHERE = {
    "AlgorithmConfig": "hindcast.builder.config",
    "Callbacks": "hindcast.run.callbacks",
    "DefaultModelConfig": "hindcast.builder.model_config",
    "EpisodeReplayBuffer": "hindcast.pipeline.replay_buffer",
    "OfflineData": "hindcast.pipeline.offline_data",
    "OfflinePreLearner": "hindcast.pipeline.prelearner",
    "Policy": "hindcast.models.policy",
    "PrioritizedEpisodeReplayBuffer": "hindcast.pipeline.replay_buffer",
    "RLModule": "hindcast.models.rl_module",
    "RLModuleSpec": "hindcast.builder.module_spec",
    "RunningAlgorithm": "hindcast.builder.algorithm",
    "SingleAgentEpisode": "hindcast.episodes.episode",
    "register_env": "hindcast.builder.user_objects",
}
"""Public name -> module that has it; the algorithms' configs and the names of results come besides."""


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None and name.endswith("Config"):
        where = "hindcast.builder.algorithm_configs"
    elif where is None and name.isupper() and not name.startswith("_"):
        where = "hindcast.names"
    if where is None or not hasattr(module := import_module(where), name):
        raise AttributeError(f"module 'hindcast' has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    constants = (name for name in vars(import_module("hindcast.names")) if name.isupper())
    configs = dir(import_module("hindcast.builder.algorithm_configs"))
    return sorted([*globals(), *_WHERE, *configs, *constants])
