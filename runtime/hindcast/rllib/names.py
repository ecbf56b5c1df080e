"""Names imported by code written for RLlib: types, a decorator, and advice for names that Hindcast does not have."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias, TypeVar

from hindcast import PUBLIC_NAMES
from hindcast.api.options import algorithms, schemas
from hindcast.api.sentences import similar
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.errors import SpecError

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
_CATALOGS: Final = "Hindcast has no catalogs; build the layers in RLModule.setup()"
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
    "MixedInput": "write .offline_data(input_={{path: weight}})",
    "PPOTorchLearner": "PPO's loss cannot be overridden; use a custom algorithm, "
    'AlgorithmConfig("package.module:Class")',
    "TfRLModule": "Hindcast computes with PyTorch: write TorchRLModule",
}
"""RLlib name that Hindcast does not have -> what to write instead: a format with the field `name`."""


class UnsupportedName(ImportError):
    """`from hindcast import NAME` of a name that only RLlib has. The message says what to write instead."""

    # An ImportError, because `from … import` would replace the message of an AttributeError.


class BCCatalog:
    """A placeholder for RLlib's catalog of BC's default networks: `RLModuleSpec(catalog_class=BCCatalog)`."""


def override(parent: type) -> Callable[[F], F]:
    """Declare that a method overrides one of `parent`; a decorator that returns the method unchanged.

    Raises:
        NameError: `parent` has no such method.
    """

    def check_override(method: F) -> F:
        if not hasattr(parent, method.__name__):
            raise NameError(f"override: {_public_name(parent)} has no {method.__name__}() to override.")
        return method

    return check_override


def _public_name(cls: type) -> str:
    """Return the name under which users import a class from `hindcast`, else its own name."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    return next((name for name, public_path in PUBLIC_NAMES.items() if public_path == path), cls.__name__)


class UnknownConfig(SpecError, ImportError):
    """The config of an unknown algorithm.

    An ImportError, because `from … import` would replace the message of an AttributeError.
    """


def refuse_unsupported(name: str) -> None:
    """Refuse a name that only RLlib has.

    Raises:
        UnsupportedName: the name is in `REPLACEMENTS`; the message says what to write instead.
    """
    if name in REPLACEMENTS:
        raise UnsupportedName(f"Hindcast has no {name}: {REPLACEMENTS[name].format(name=name)}.")


def refuse_unknown_config(name: str) -> None:
    """Refuse the config of an unknown algorithm.

    Raises:
        UnknownConfig: the name contains "Conf"; the message has a similar name, or the algorithms that exist.
    """
    algorithm, separator, _ = name.partition("Conf")
    if separator:
        raise UnknownConfig(f"Hindcast has no {name}{_config_advice(algorithm)}")


def _config_advice(algorithm: str) -> str:
    if guess := similar(algorithm, schemas()):
        # The guess, such as `; did you mean 'BC'?`, names an algorithm, not a config.
        return guess.replace("'?", "Config'?")
    online, offline = (", ".join(algorithms(kind)) for kind in ("OfflineRecording", "OfflineTraining"))
    return (
        f": {online} learn in an environment, {offline} from data; for a custom algorithm use "
        'AlgorithmConfig("package.module:Class").'
    )
