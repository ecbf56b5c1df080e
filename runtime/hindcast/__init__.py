"""Hindcast: offline reinforcement learning from recorded experience.

The public names are imported when they are first used, so that `import hindcast` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hindcast.version import __version__ as __version__

if TYPE_CHECKING:
    from hindcast.algorithms.own_loss import BCTorchLearner as BCTorchLearner
    from hindcast.algorithms.own_loss import DQNTorchLearner as DQNTorchLearner
    from hindcast.algorithms.own_loss import MARWILTorchLearner as MARWILTorchLearner
    from hindcast.algorithms.own_loss import OwnLoss as Learner  # noqa: F401
    from hindcast.builder.algorithm import RunningAlgorithm as Algorithm  # noqa: F401
    from hindcast.builder.algorithm import RunningAlgorithm as RunningAlgorithm
    from hindcast.builder.algorithm_classes import *  # noqa: F403  generated
    from hindcast.builder.algorithm_configs import *  # noqa: F403  generated
    from hindcast.builder.batch_io.inputs import register_input as register_input
    from hindcast.builder.batch_io.readers import DatasetReader as DatasetReader
    from hindcast.builder.batch_io.readers import InputReader as InputReader
    from hindcast.builder.batch_io.readers import IOContext as IOContext
    from hindcast.builder.batch_io.readers import JsonReader as JsonReader
    from hindcast.builder.batch_io.readers import JsonWriter as JsonWriter
    from hindcast.builder.batch_io.readers import OutputWriter as OutputWriter
    from hindcast.builder.batch_io.sample_batch import SampleBatch as SampleBatch
    from hindcast.builder.batch_io.sample_batch import SampleBatchBuilder as SampleBatchBuilder
    from hindcast.builder.config import AlgorithmConfig as AlgorithmConfig
    from hindcast.builder.model_config import DefaultModelConfig as DefaultModelConfig
    from hindcast.builder.module_spec import MultiRLModuleSpec as MultiRLModuleSpec
    from hindcast.builder.module_spec import RLModuleSpec as RLModuleSpec
    from hindcast.builder.user_objects import register_env as register_env
    from hindcast.episodes.columns import Columns as Columns
    from hindcast.episodes.episode import SingleAgentEpisode as SingleAgentEpisode
    from hindcast.models.policy import Policy as Policy
    from hindcast.models.rl_module import PolicyModule as DefaultBCTorchRLModule  # noqa: F401
    from hindcast.models.rl_module import RLModule as RLModule
    from hindcast.models.rl_module import RLModule as TorchRLModule  # noqa: F401
    from hindcast.models.rl_module import ValueFunctionAPI as ValueFunctionAPI
    from hindcast.pipeline.batch_prelearner import SCHEMA as SCHEMA
    from hindcast.pipeline.connector_pieces import (
        AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
    )
    from hindcast.pipeline.connector_pieces import (
        AddNextObservationsFromEpisodesToTrainBatch as AddNextObservationsFromEpisodesToTrainBatch,
    )
    from hindcast.pipeline.connector_pieces import (
        AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
    )
    from hindcast.pipeline.connector_pieces import (
        AddOneTsToEpisodesAndTruncate as AddOneTsToEpisodesAndTruncate,
    )
    from hindcast.pipeline.connector_pieces import (
        AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch,
    )
    from hindcast.pipeline.connector_pieces import AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad
    from hindcast.pipeline.connector_pieces import AgentToModuleMapping as AgentToModuleMapping
    from hindcast.pipeline.connector_pieces import BatchIndividualItems as BatchIndividualItems
    from hindcast.pipeline.connector_pieces import FrameStackingLearner as FrameStackingLearner
    from hindcast.pipeline.connector_pieces import GeneralAdvantageEstimation as GeneralAdvantageEstimation
    from hindcast.pipeline.connector_pieces import NumpyToTensor as NumpyToTensor
    from hindcast.pipeline.connector_v2 import ConnectorV2 as ConnectorV2
    from hindcast.pipeline.connector_v2 import LearnerConnectorPipeline as LearnerConnectorPipeline
    from hindcast.pipeline.metrics_logger import MetricsLogger as MetricsLogger
    from hindcast.pipeline.module_batches import MultiAgentBatch as MultiAgentBatch
    from hindcast.pipeline.offline_data import OfflineData as OfflineData
    from hindcast.pipeline.prelearner import OfflinePreLearner as OfflinePreLearner
    from hindcast.pipeline.replay_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
    from hindcast.pipeline.replay_buffer import (
        PrioritizedEpisodeReplayBuffer as PrioritizedEpisodeReplayBuffer,
    )
    from hindcast.record.callbacks import Callbacks as Callbacks
    from hindcast.record.callbacks import Callbacks as DefaultCallbacks  # noqa: F401
    from hindcast.record.callbacks import Callbacks as RLlibCallback  # noqa: F401
    from hindcast.rllib_names import AgentID as AgentID
    from hindcast.rllib_names import BCCatalog as BCCatalog
    from hindcast.rllib_names import EpisodeType as EpisodeType
    from hindcast.rllib_names import ModuleID as ModuleID
    from hindcast.rllib_names import PolicyID as PolicyID
    from hindcast.rllib_names import ResultDict as ResultDict
    from hindcast.rllib_names import TensorType as TensorType
    from hindcast.rllib_names import override as override
    from hindcast.serve.client import PolicyClient as PolicyClient
    from hindcast.serve.client import Unreachable as Unreachable
    from hindcast.serve.episode_writer import EpisodeWriter as EpisodeWriter
    from hindcast.serve.messages import UnknownEpisode as UnknownEpisode
    from hindcast.serve.policy_server import PolicyServer as PolicyServer

_WHERE = {
    **dict.fromkeys(
        ("DatasetReader", "IOContext", "InputReader", "JsonReader", "JsonWriter", "OutputWriter"),
        "hindcast.builder.batch_io.readers",
    ),
    **dict.fromkeys(("SampleBatch", "SampleBatchBuilder"), "hindcast.builder.batch_io.sample_batch"),
    **dict.fromkeys(
        (
            "AddColumnsFromEpisodesToTrainBatch",
            "AddNextObservationsFromEpisodesToTrainBatch",
            "AddObservationsFromEpisodesToBatch",
            "AddOneTsToEpisodesAndTruncate",
            "AddStatesFromEpisodesToBatch",
            "AddTimeDimToBatchAndZeroPad",
            "AgentToModuleMapping",
            "BatchIndividualItems",
            "FrameStackingLearner",
            "GeneralAdvantageEstimation",
            "NumpyToTensor",
        ),
        "hindcast.pipeline.connector_pieces",
    ),
    **dict.fromkeys(
        (
            "AgentID",
            "BCCatalog",
            "EpisodeType",
            "ModuleID",
            "PolicyID",
            "ResultDict",
            "TensorType",
            "override",
        ),
        "hindcast.rllib_names",
    ),
    "Algorithm": "hindcast.builder.algorithm:RunningAlgorithm",
    "AlgorithmConfig": "hindcast.builder.config",
    "BCTorchLearner": "hindcast.algorithms.own_loss",
    "Callbacks": "hindcast.record.callbacks",
    "ConnectorV2": "hindcast.pipeline.connector_v2",
    "DQNTorchLearner": "hindcast.algorithms.own_loss",
    "DefaultCallbacks": "hindcast.record.callbacks:Callbacks",
    "Learner": "hindcast.algorithms.own_loss:OwnLoss",
    "MetricsLogger": "hindcast.pipeline.metrics_logger",
    "RLlibCallback": "hindcast.record.callbacks:Callbacks",
    "get_trainable_cls": "hindcast.builder.algorithm_classes",
    "Columns": "hindcast.episodes.columns",
    "DefaultModelConfig": "hindcast.builder.model_config",
    "EpisodeWriter": "hindcast.serve.episode_writer",
    "EpisodeReplayBuffer": "hindcast.pipeline.replay_buffer",
    "LearnerConnectorPipeline": "hindcast.pipeline.connector_v2",
    "MARWILTorchLearner": "hindcast.algorithms.own_loss",
    "MultiAgentBatch": "hindcast.pipeline.module_batches",
    "MultiRLModuleSpec": "hindcast.builder.module_spec",
    "OfflineData": "hindcast.pipeline.offline_data",
    "OfflinePreLearner": "hindcast.pipeline.prelearner",
    "Policy": "hindcast.models.policy",
    "PolicyClient": "hindcast.serve.client",
    "PolicyServer": "hindcast.serve.policy_server",
    "PrioritizedEpisodeReplayBuffer": "hindcast.pipeline.replay_buffer",
    "RLModule": "hindcast.models.rl_module",
    "RLModuleSpec": "hindcast.builder.module_spec",
    "TorchRLModule": "hindcast.models.rl_module:RLModule",
    "DefaultBCTorchRLModule": "hindcast.models.rl_module:PolicyModule",
    "ValueFunctionAPI": "hindcast.models.rl_module",
    "RunningAlgorithm": "hindcast.builder.algorithm",
    "SCHEMA": "hindcast.pipeline.batch_prelearner",
    "SingleAgentEpisode": "hindcast.episodes.episode",
    "Unreachable": "hindcast.serve.client",
    "UnknownEpisode": "hindcast.serve.messages",
    "register_input": "hindcast.builder.batch_io.inputs",
    "register_env": "hindcast.builder.user_objects",
}
"""Public name -> module that has it, with ":Name" where it has another name there.

The algorithms' configs and the names of results come in addition.
"""


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None and name[0].isupper():
        import_module("hindcast.rllib_names").refuse(name)
        where = _where_generated(name)
    path, _, own = (where or "").partition(":")
    if where is None or not hasattr(module := import_module(path), own or name):
        raise AttributeError(f"module 'hindcast' has no attribute {name!r}")
    return getattr(module, own or name)


def _where_generated(name: str) -> str | None:
    """The module that makes a name which follows from the algorithms, or has the names of results."""
    if name in import_module("hindcast.api.options").schemas():
        return "hindcast.builder.algorithm_classes"
    if "Conf" in name:
        return "hindcast.builder.algorithm_configs"
    return "hindcast.names" if name.isupper() else None


def __dir__() -> list[str]:
    constants = (name for name in vars(import_module("hindcast.names")) if name.isupper())
    configs = dir(import_module("hindcast.builder.algorithm_configs"))
    return sorted([*globals(), *_WHERE, *configs, *constants])
