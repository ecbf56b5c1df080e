"""Hindcast: offline reinforcement learning from recorded experience.

Public names are imported on first use, so that `import hindcast` stays cheap. `make crds` writes `__init__.pyi`, which
names them for editors and type checkers.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from hindcast.version import __version__ as __version__

PUBLIC_NAMES: Final = {
    **{
        name: f"hindcast.rllib.connectors.library:{name}"
        for name in (
            "AddColumnsFromEpisodesToTrainBatch",
            "AddInfosFromEpisodesToTrainBatch",
            "AddNextObservationsFromEpisodesToTrainBatch",
            "AddObservationsFromEpisodesToBatch",
            "AddOneTsToEpisodesAndTruncate",
            "AddStatesFromEpisodesToBatch",
            "AddTimeDimToBatchAndZeroPad",
            "AgentToModuleMapping",
            "BatchIndividualItems",
            "ComputeReturnsToGo",
            "FlattenObservations",
            "FrameStackingLearner",
            "GeneralAdvantageEstimation",
            "NumpyToTensor",
            "TensorToNumpy",
        )
    },
    "AgentID": "hindcast.rllib.names:AgentID",
    **dict.fromkeys(
        (
            "ActionConnectorDataType",
            "AgentConnectorDataType",
            "AgentConnectorsOutput",
            "AgentToModuleMappingFn",
            "ConvFilterSpec",
            "DeviceType",
            "EnvCreator",
            "EnvID",
            "EnvType",
            "IsPolicyToTrain",
            "LearningRateOrSchedule",
            "LocalOptimizer",
            "ModelGradients",
            "ModelInputDict",
            "MultiEnvDict",
            "NamedParamDict",
            "NetworkType",
            "Optimizer",
            "Param",
            "ParamDict",
            "ParamList",
            "ParamRef",
            "PolicyOutputType",
            "PolicyState",
            "RLModuleSpecType",
            "SampleBatchType",
            "ShouldModuleBeUpdatedFn",
            "SpaceStruct",
            "StateBatches",
            "TensorShape",
            "TensorStructType",
            "TensorType",
            "ViewRequirementsDict",
        ),
        "hindcast.rllib.names:AnyType",
    ),
    "Algorithm": "hindcast.rllib.builder.algorithm:RunningAlgorithm",
    "AlgorithmConfig": "hindcast.rllib.builder.config:AlgorithmConfig",
    "BCCatalog": "hindcast.rllib.names:BCCatalog",
    "BCTorchRLModule": "hindcast.models.rl_module:PolicyModule",
    "BCTorchLearner": "hindcast.rllib.learners:BCTorchLearner",
    "Callbacks": "hindcast.rllib.callbacks:RLlibCallback",
    "Columns": "hindcast.episodes.columns:Columns",
    "ConnectorPipelineV2": "hindcast.rllib.connectors.connector_v2:LearnerConnectorPipeline",
    "ConnectorV2": "hindcast.rllib.connectors.connector_v2:ConnectorV2",
    "DQNTorchLearner": "hindcast.rllib.learners:DQNTorchLearner",
    "DatasetReader": "hindcast.rllib.batch_io.readers:DatasetReader",
    "DefaultBCTorchRLModule": "hindcast.models.rl_module:PolicyModule",
    "DefaultPPOTorchRLModule": "hindcast.models.rl_module:PolicyModule",
    "DefaultCallbacks": "hindcast.rllib.callbacks:RLlibCallback",
    "DefaultModelConfig": "hindcast.rllib.builder.model_config:DefaultModelConfig",
    "EpisodeID": "hindcast.rllib.names:EpisodeID",
    "EpisodeReplayBuffer": "hindcast.rllib.replay_buffer:EpisodeReplayBuffer",
    "EpisodeType": "hindcast.rllib.names:EpisodeType",
    "EpisodeWriter": "hindcast.serve.episode_writer:EpisodeWriter",
    "IOContext": "hindcast.rllib.batch_io.readers:IOContext",
    "InfiniteLookbackBuffer": "hindcast.episodes.lookback_buffer:InfiniteLookbackBuffer",
    "InputReader": "hindcast.rllib.batch_io.readers:InputReader",
    "JsonReader": "hindcast.rllib.batch_io.readers:JsonReader",
    "JsonWriter": "hindcast.rllib.batch_io.readers:JsonWriter",
    "Learner": "hindcast.rllib.learners:CustomLoss",
    "LearnerConnectorPipeline": "hindcast.rllib.connectors.connector_v2:LearnerConnectorPipeline",
    "MARWILTorchLearner": "hindcast.rllib.learners:MARWILTorchLearner",
    "MetricsLogger": "hindcast.metrics_logger:MetricsLogger",
    "ModuleID": "hindcast.rllib.names:ModuleID",
    "MultiAgentBatch": "hindcast.rllib.connectors.module_batches:MultiAgentBatch",
    "MultiRLModuleSpec": "hindcast.rllib.builder.module_spec:MultiRLModuleSpec",
    "OfflineData": "hindcast.rllib.offline_data:RLlibOfflineData",
    "OfflinePreLearner": "hindcast.rllib.prelearner:RLlibPreLearner",
    "OverrideToImplementCustomLogic": "hindcast.rllib.names:OverrideToImplementCustomLogic",
    "OverrideToImplementCustomLogic_CallToSuperRecommended": (
        "hindcast.rllib.names:OverrideToImplementCustomLogic_CallToSuperRecommended"
    ),
    "OutputWriter": "hindcast.rllib.batch_io.readers:OutputWriter",
    "Policy": "hindcast.models.policy:Policy",
    "PolicyClient": "hindcast.serve.client:PolicyClient",
    "PolicyID": "hindcast.rllib.names:PolicyID",
    "PolicyServer": "hindcast.serve.policy_server:PolicyServer",
    "PrioritizedEpisodeReplayBuffer": "hindcast.rllib.replay_buffer:PrioritizedEpisodeReplayBuffer",
    "RLModule": "hindcast.models.rl_module:RLModule",
    "RLModuleSpec": "hindcast.rllib.builder.module_spec:RLModuleSpec",
    "RLlibCallback": "hindcast.rllib.callbacks:RLlibCallback",
    "ResultDict": "hindcast.rllib.names:ResultDict",
    "RunningAlgorithm": "hindcast.rllib.builder.algorithm:RunningAlgorithm",
    "SCHEMA": "hindcast.rllib.row_mapping:SCHEMA",
    "SampleBatch": "hindcast.rllib.batch_io.sample_batch:SampleBatch",
    "SampleBatchBuilder": "hindcast.rllib.batch_io.sample_batch:SampleBatchBuilder",
    "SingleAgentEpisode": "hindcast.episodes.episode:SingleAgentEpisode",
    "StateDict": "hindcast.rllib.names:StateDict",
    "TorchRLModule": "hindcast.models.rl_module:RLModule",
    "UnknownEpisode": "hindcast.serve.messages:UnknownEpisode",
    "Unreachable": "hindcast.serve.client:Unreachable",
    "ValueFunctionAPI": "hindcast.models.rl_module:ValueFunctionAPI",
    "concat_samples": "hindcast.rllib.batch_io.sample_batch:concat_samples",
    "get_trainable_cls": "hindcast.rllib.builder.algorithm_lookup:get_trainable_cls",
    "override": "hindcast.rllib.names:override",
    "register_env": "hindcast.rllib.builder.user_objects:register_env",
    "register_input": "hindcast.rllib.batch_io.inputs:register_input",
}
"""Public name -> "module:name"."""
EXPORTED_MODULES: Final = (
    "hindcast.names",
    "hindcast.rllib.builder.algorithm_configs",
    "hindcast.rllib.builder.algorithm_classes",
)
"""Modules whose capitalised names are public too: RLlib's keys of results, and classes for each algorithm."""


def __getattr__(name: str) -> Any:
    if name in PUBLIC_NAMES:
        module, _, attribute = PUBLIC_NAMES[name].partition(":")
        return getattr(import_module(module), attribute)
    if name[0].isupper():
        import_module("hindcast.rllib.names").refuse_unsupported(name)
        for module in EXPORTED_MODULES:
            if hasattr(import_module(module), name):
                return getattr(import_module(module), name)
        import_module("hindcast.rllib.names").refuse_unknown_config(name)
        import_module("hindcast.rllib.names").refuse_unknown_constant(name)
    # `from hindcast import formatting` asks for the attribute before it imports the module. find_spec would import the
    # parents of a name with a dot.
    elif name[0] != "_" and ("." in name or find_spec(f"{__name__}.{name}") is None):
        import_module("hindcast.rllib.names").refuse_unsupported(name)
    raise AttributeError(f"module 'hindcast' has no attribute {name!r}")


def __dir__() -> list[str]:
    exported_names = (name for module in EXPORTED_MODULES for name in vars(import_module(module)))
    return sorted({*globals(), *PUBLIC_NAMES, *(name for name in exported_names if name[0].isupper())})
