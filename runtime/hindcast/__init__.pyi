# ruff: noqa: F401, F403
"""The public names. The package imports each name on first use, from the module that this file lists."""

from typing import Any

from hindcast.algorithms.own_loss import BCTorchLearner as BCTorchLearner
from hindcast.algorithms.own_loss import CustomLoss as Learner
from hindcast.algorithms.own_loss import DQNTorchLearner as DQNTorchLearner
from hindcast.algorithms.own_loss import MARWILTorchLearner as MARWILTorchLearner
from hindcast.builder.algorithm import RunningAlgorithm as Algorithm
from hindcast.builder.algorithm import RunningAlgorithm as RunningAlgorithm
from hindcast.builder.algorithm_classes import *
from hindcast.builder.algorithm_classes import get_trainable_cls as get_trainable_cls
from hindcast.builder.algorithm_configs import *
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
from hindcast.models.rl_module import PolicyModule as DefaultBCTorchRLModule
from hindcast.models.rl_module import RLModule as RLModule
from hindcast.models.rl_module import RLModule as TorchRLModule
from hindcast.models.rl_module import ValueFunctionAPI as ValueFunctionAPI
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
from hindcast.pipeline.rllib_prelearner import SCHEMA as SCHEMA
from hindcast.record.callbacks import Callbacks as Callbacks
from hindcast.record.callbacks import Callbacks as DefaultCallbacks
from hindcast.record.callbacks import Callbacks as RLlibCallback
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
from hindcast.version import __version__ as __version__

def __getattr__(name: str) -> Any: ...
