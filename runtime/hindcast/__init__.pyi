# ruff: noqa: F401, F403
"""The public names. The package imports each on first use from the module that this file names."""

from typing import Any

from hindcast.episodes.columns import Columns as Columns
from hindcast.episodes.episode import SingleAgentEpisode as SingleAgentEpisode
from hindcast.models.policy import Policy as Policy
from hindcast.models.rl_module import PolicyModule as DefaultBCTorchRLModule
from hindcast.models.rl_module import RLModule as RLModule
from hindcast.models.rl_module import RLModule as TorchRLModule
from hindcast.models.rl_module import ValueFunctionAPI as ValueFunctionAPI
from hindcast.pipeline.metrics_logger import MetricsLogger as MetricsLogger
from hindcast.rllib.batch_io.inputs import register_input as register_input
from hindcast.rllib.batch_io.readers import DatasetReader as DatasetReader
from hindcast.rllib.batch_io.readers import InputReader as InputReader
from hindcast.rllib.batch_io.readers import IOContext as IOContext
from hindcast.rllib.batch_io.readers import JsonReader as JsonReader
from hindcast.rllib.batch_io.readers import JsonWriter as JsonWriter
from hindcast.rllib.batch_io.readers import OutputWriter as OutputWriter
from hindcast.rllib.batch_io.sample_batch import SampleBatch as SampleBatch
from hindcast.rllib.batch_io.sample_batch import SampleBatchBuilder as SampleBatchBuilder
from hindcast.rllib.builder.algorithm import RunningAlgorithm as Algorithm
from hindcast.rllib.builder.algorithm import RunningAlgorithm as RunningAlgorithm
from hindcast.rllib.builder.algorithm_classes import *
from hindcast.rllib.builder.algorithm_classes import get_trainable_cls as get_trainable_cls
from hindcast.rllib.builder.algorithm_configs import *
from hindcast.rllib.builder.config import AlgorithmConfig as AlgorithmConfig
from hindcast.rllib.builder.model_config import DefaultModelConfig as DefaultModelConfig
from hindcast.rllib.builder.module_spec import MultiRLModuleSpec as MultiRLModuleSpec
from hindcast.rllib.builder.module_spec import RLModuleSpec as RLModuleSpec
from hindcast.rllib.builder.user_objects import register_env as register_env
from hindcast.rllib.callbacks import RLlibCallback as Callbacks
from hindcast.rllib.callbacks import RLlibCallback as DefaultCallbacks
from hindcast.rllib.callbacks import RLlibCallback as RLlibCallback
from hindcast.rllib.connectors.connector_v2 import ConnectorV2 as ConnectorV2
from hindcast.rllib.connectors.connector_v2 import LearnerConnectorPipeline as LearnerConnectorPipeline
from hindcast.rllib.connectors.library import (
    AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
)
from hindcast.rllib.connectors.library import (
    AddNextObservationsFromEpisodesToTrainBatch as AddNextObservationsFromEpisodesToTrainBatch,
)
from hindcast.rllib.connectors.library import (
    AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
)
from hindcast.rllib.connectors.library import (
    AddOneTsToEpisodesAndTruncate as AddOneTsToEpisodesAndTruncate,
)
from hindcast.rllib.connectors.library import (
    AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch,
)
from hindcast.rllib.connectors.library import AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad
from hindcast.rllib.connectors.library import AgentToModuleMapping as AgentToModuleMapping
from hindcast.rllib.connectors.library import BatchIndividualItems as BatchIndividualItems
from hindcast.rllib.connectors.library import FrameStackingLearner as FrameStackingLearner
from hindcast.rllib.connectors.library import GeneralAdvantageEstimation as GeneralAdvantageEstimation
from hindcast.rllib.connectors.library import NumpyToTensor as NumpyToTensor
from hindcast.rllib.connectors.module_batches import MultiAgentBatch as MultiAgentBatch
from hindcast.rllib.learners import BCTorchLearner as BCTorchLearner
from hindcast.rllib.learners import CustomLoss as Learner
from hindcast.rllib.learners import DQNTorchLearner as DQNTorchLearner
from hindcast.rllib.learners import MARWILTorchLearner as MARWILTorchLearner
from hindcast.rllib.names import AgentID as AgentID
from hindcast.rllib.names import BCCatalog as BCCatalog
from hindcast.rllib.names import EpisodeType as EpisodeType
from hindcast.rllib.names import ModuleID as ModuleID
from hindcast.rllib.names import PolicyID as PolicyID
from hindcast.rllib.names import ResultDict as ResultDict
from hindcast.rllib.names import TensorType as TensorType
from hindcast.rllib.names import override as override
from hindcast.rllib.offline_data import RLlibOfflineData as OfflineData
from hindcast.rllib.prelearner import RLlibPreLearner as OfflinePreLearner
from hindcast.rllib.replay_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
from hindcast.rllib.replay_buffer import (
    PrioritizedEpisodeReplayBuffer as PrioritizedEpisodeReplayBuffer,
)
from hindcast.rllib.row_mapping import SCHEMA as SCHEMA
from hindcast.serve.client import PolicyClient as PolicyClient
from hindcast.serve.client import Unreachable as Unreachable
from hindcast.serve.episode_writer import EpisodeWriter as EpisodeWriter
from hindcast.serve.messages import UnknownEpisode as UnknownEpisode
from hindcast.serve.policy_server import PolicyServer as PolicyServer
from hindcast.version import __version__ as __version__

def __getattr__(name: str) -> Any: ...
