"""Names that code written for RLlib imports: a few types and a decorator, and what to write in place of others."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias, TypeVar

from hindcast.episodes.episode import SingleAgentEpisode

F = TypeVar("F", bound=Callable[..., Any])

EpisodeType: TypeAlias = SingleAgentEpisode
ModuleID: TypeAlias = str
PolicyID: TypeAlias = str
AgentID: TypeAlias = Hashable
ResultDict: TypeAlias = dict[str, Any]
TensorType: TypeAlias = Any

_TUNE: Final = "write tune.{name}, after `from hindcast import tune`"
_AGENTS: Final = "several agents are not available yet"
_RUNNERS: Final = "algo.env_runner_group plays with the policy, and evaluate() evaluates it"
_CATALOGS: Final = "there are no catalogs: build the layers in RLModule.setup()"
_BUFFERS: Final = "write EpisodeReplayBuffer or PrioritizedEpisodeReplayBuffer"
REPLACEMENTS: Final = {
    **dict.fromkeys(
        (
            "RunConfig",
            "CheckpointConfig",
            "FailureConfig",
            "Tuner",
            "TuneConfig",
            "ResultGrid",
        ),
        _TUNE,
    ),
    **dict.fromkeys(
        ("MultiAgentEpisode", "MultiAgentEnv", "MultiAgentEnvRunner", "PolicySpec", "MultiRLModule"), _AGENTS
    ),
    **dict.fromkeys(("EnvRunner", "SingleAgentEnvRunner", "EnvRunnerGroup", "RolloutWorker"), _RUNNERS),
    **dict.fromkeys(("Catalog", "ModelCatalog", "PPOCatalog", "DQNCatalog", "SACCatalog"), _CATALOGS),
    "MultiAgentSampleBatchBuilder": "write SampleBatchBuilder, with different eps_ids for each agent",
    **dict.fromkeys(("ExternalEnv", "PolicyServerInput"), "write PolicyServer, or run `hindcast serve`"),
    **dict.fromkeys(
        (
            "ReplayBuffer",
            "PrioritizedReplayBuffer",
            "MultiAgentReplayBuffer",
            "MultiAgentEpisodeReplayBuffer",
        ),
        _BUFFERS,
    ),
    **dict.fromkeys(
        ("ImportanceSampling", "WeightedImportanceSampling", "DirectMethod", "DoublyRobust"),
        "write .evaluation(offline_evaluation_held_out=0.1, off_policy_estimation_methods=[...]), or run "
        "`hindcast evaluate`",
    ),
    "MixedInput": "write .offline_data(input_={{path: share}})",
    "PPOTorchLearner": "PPO's loss cannot be overridden; an algorithm of your own is "
    'AlgorithmConfig("package.module:Class")',
    "TfRLModule": "Hindcast computes with PyTorch: write TorchRLModule",
}
"""A name of RLlib's that is not here -> what to do instead."""


class UnsupportedName(ImportError):
    """`from hindcast import …` of what RLlib has, with what to write. An `AttributeError` would lose the sentence."""


class BCCatalog:
    """RLlib's catalog of BC's default networks, for `RLModuleSpec(catalog_class=BCCatalog)`: it says nothing else."""


def override(parent: type) -> Callable[[F], F]:
    """Mark a method that overrides one of `parent`.

    Raises:
        NameError: `parent` has no such method.
    """

    def checked(method: F) -> F:
        if not hasattr(parent, method.__name__):
            raise NameError(f"override: {parent.__name__} has no {method.__name__}() to override.")
        return method

    return checked


def refuse_unsupported(name: str) -> None:
    """Say what to write instead of a name that is not here.

    Raises:
        NotHere: it is one of RLlib's that are not.
    """
    if name in REPLACEMENTS:
        raise UnsupportedName(f"Hindcast has no {name}: {REPLACEMENTS[name].format(name=name)}.")
