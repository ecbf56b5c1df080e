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
EpisodeID: TypeAlias = str
AgentID: TypeAlias = Hashable
ResultDict: TypeAlias = dict[str, Any]
StateDict: TypeAlias = dict[str, Any]
AnyType: TypeAlias = Any
"""RLlib's types of values that Hindcast does not check."""

_TUNE: Final = "write tune.{name}, after `from hindcast import tune`"
_AGENTS: Final = "several agents are not available yet"
_RUNNERS: Final = "algo.env_runner_group plays with the policy, and evaluate() evaluates it"
_CATALOGS: Final = "Hindcast has no catalogs; build the layers in RLModule.setup()"
_BUFFERS: Final = "write EpisodeReplayBuffer or PrioritizedEpisodeReplayBuffer"
_WRAPPERS: Final = (
    "there are no connectors between environment and module; use a wrapper of the environment, "
    ".environment(wrappers=[...])"
)
_ACTING: Final = "policies normalise, clip and unpack actions themselves; set .environment(clip_actions=...)"
_OLD_STACK: Final = "it belongs to RLlib's old API stack; write RLModule and a learner class"
_LOSS: Final = (
    'its loss cannot be overridden; use a custom algorithm, AlgorithmConfig("package.module:Class"), or learner_class '
    "with BCTorchLearner, MARWILTorchLearner or DQNTorchLearner"
)
_DEFAULT_MODULES: Final = "leave module_class out; rl_module(model_config=...) sets the layers"
_EVALUATION_RUNNERS: Final = (
    "the learner evaluates; write .evaluation(offline_evaluation_held_out=0.1, "
    "off_policy_estimation_methods=[...])"
)
_DECORATORS: Final = "it only marks RLlib's own code; leave it out"
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
            "MultiAgentPrioritizedEpisodeReplayBuffer",
            "MultiAgentPrioritizedReplayBuffer",
            "MultiAgentMixInReplayBuffer",
            "FifoReplayBuffer",
            "ReservoirReplayBuffer",
            "ReplayMode",
            "StorageUnit",
        ),
        _BUFFERS,
    ),
    "MeanStdFilter": 'write .env_runners(observation_filter="MeanStdFilter"), in training and in acting',
    "PrevActionsPrevRewards": "policies only get observations; " + _WRAPPERS,
    **dict.fromkeys(
        (
            "EnvToModulePipeline",
            "WriteObservationsToEpisodes",
            "ObservationPreprocessor",
            "SingleAgentObservationPreprocessor",
            "MultiAgentObservationPreprocessor",
        ),
        _WRAPPERS,
    ),
    "FrameStackingEnvToModule": "write .rl_module(model_config=DefaultModelConfig(frame_stack=...))",
    **dict.fromkeys(
        (
            "ModuleToEnvPipeline",
            "ModuleToAgentUnmapping",
            "GetActions",
            "ListifyDataForVectorEnv",
            "NormalizeAndClipActions",
            "RemoveSingleTsTimeRankFromBatch",
            "UnBatchToIndividualItems",
        ),
        _ACTING,
    ),
    **dict.fromkeys(
        ("OfflineSingleAgentEnvRunner", "DatasetWriter"),
        "write .offline_data(output=...), which records episodes",
    ),
    "D4RLReader": "write .offline_data(input_=...) with the path of the HDF5 file",
    **dict.fromkeys(
        ("ShuffledInput", "get_dataset_and_shards"),
        "every epoch is shuffled; set .offline_data(window_steps=...)",
    ),
    "NoopOutput": "leave output out",
    "get_offline_io_resource_bundles": "on a cluster, spec.cluster reserves resources",
    **dict.fromkeys(
        (
            "OffPolicyEstimator",
            "FeatureImportance",
            "OfflineEvaluationRunner",
            "OfflinePolicyEvaluationRunner",
            "OfflinePolicyEvaluationTypes",
            "OfflinePolicyPreEvaluator",
            "MiniBatchEpisodeRayDataIterator",
        ),
        _EVALUATION_RUNNERS,
    ),
    **dict.fromkeys(
        (
            "BaseEnv",
            "VectorEnv",
            "RemoteBaseEnv",
            "ExternalMultiAgentEnv",
            "EnvContext",
            "DMCEnv",
            "DMEnv",
        ),
        "environments are Gymnasium's; name one, or register it with register_env",
    ),
    **dict.fromkeys(
        ("GroupAgentsWrapper", "PettingZooEnv", "ParallelPettingZooEnv", "MultiAgentDict"), _AGENTS
    ),
    **dict.fromkeys(
        (
            "TFPolicy",
            "TorchPolicy",
            "TFPolicyV2Type",
            *(f"{name}TF{version}Policy" for name in ("MARWIL", "PPO") for version in (1, 2)),
            *(f"{name}TorchPolicy" for name in ("BC", "MARWIL", "CQL", "PPO", "DQN", "SAC")),
            "DQNTFPolicy",
            "SACTFPolicy",
            "convert_ma_batch_to_sample_batch",
            "concat_samples_into_ma_batch",
            "attempt_count_timesteps",
        ),
        _OLD_STACK,
    ),
    **dict.fromkeys(("CQLTorchLearner", "IQLTorchLearner", "SACTorchLearner", "PPOTorchLearner"), _LOSS),
    **dict.fromkeys(
        (
            f"Default{name}{torch}RLModule"
            for name in ("PPO", "DQN", "SAC", "CQL", "IQL", "MARWIL", "BC")
            for torch in ("", "Torch")
            if (name, torch) not in {("BC", "Torch"), ("PPO", "Torch")}
        ),
        _DEFAULT_MODULES,
    ),
    **dict.fromkeys(("APPO", "IMPALA", "Impala"), "PPO, DQN and SAC learn in an environment"),
    "LearnerGroup": "algo.learner_group exists; its foreach_learner() calls a function with the learner",
    **dict.fromkeys(("MemoryTrackingCallbacks", "make_callback"), "write a class derived from RLlibCallback"),
    **dict.fromkeys(
        ("PublicAPI", "DeveloperAPI", "ExperimentalAPI", "OldAPIStack", "is_overridden"), _DECORATORS
    ),
    **dict.fromkeys(
        ("InferenceOnlyAPI", "QNetAPI", "SelfSupervisedLossAPI", "TargetNetworkAPI", "validate_module_id"),
        "RLModule and ValueFunctionAPI are the interfaces of networks; target networks are the algorithm's",
    ),
    "TorchCompileWhatToCompile": "complete losses are compiled; write .framework(torch_compile_learner=True)",
    "RLlibBackendExecutor": "on a cluster, spec.learners sets the learners",
    "TrainIterCtx": "train() is one iteration",
    **dict.fromkeys(
        ("RandomEnv", "RandomLargeObsSpaceEnv", "RandomLargeObsSpaceEnvContActions"),
        "it is one of RLlib's examples; name any environment of Gymnasium",
    ),
    **dict.fromkeys(
        ("ImportanceSampling", "WeightedImportanceSampling", "DirectMethod", "DoublyRobust"),
        "write .evaluation(offline_evaluation_held_out=0.1, off_policy_estimation_methods=[...]), or run "
        "`hindcast evaluate`",
    ),
    "MixedInput": "write .offline_data(input_={{path: weight}})",
    "TfRLModule": "Hindcast computes with PyTorch: write TorchRLModule",
}
"""RLlib name that Hindcast does not have -> what to write instead: a format with the field `name`."""


def replacement_table() -> str:
    """Return the names of RLlib that Hindcast does not have as Markdown, one line for those with the same advice."""
    names_by_advice: dict[str, list[str]] = {}
    for name, advice in REPLACEMENTS.items():
        names_by_advice.setdefault(advice, []).append(name)
    lines = ["| RLlib's names | Instead |", "|---|---|"]
    for advice, names in names_by_advice.items():
        text = advice.format(name="<name>").replace("|", "\\|")
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {text} |")
    return "\n".join(lines)


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


def _mark_hook(method: F) -> F:
    """Mark a method that subclasses override; return it unchanged."""
    return method


OverrideToImplementCustomLogic: Final = _mark_hook
OverrideToImplementCustomLogic_CallToSuperRecommended: Final = _mark_hook


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


def refuse_unknown_constant(name: str) -> None:
    """Refuse a constant that does not exist here, such as most of RLlib's keys of metrics.

    Raises:
        UnsupportedName: the name is in capitals, with an underscore.
    """
    if name.isupper() and "_" in name:
        raise UnsupportedName(
            f"Hindcast has no {name}: hindcast.names has the keys of results, and hindcast.Columns those of batches."
        )


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
