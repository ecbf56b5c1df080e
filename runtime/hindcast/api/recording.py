"""OfflineRecording: run a policy in environments and write its experience to storage."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hindcast.api.base import (
    API_VERSION,
    LOCATION,
    OPERATIONAL,
    ApiVersion,
    ClassPath,
    Location,
    Model,
    NonNegative,
    Positive,
    Revision,
    ShortText,
)
from hindcast.api.cluster import ClusterSpec
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.input import Sampler
from hindcast.api.lists import ListSet
from hindcast.api.metadata import Metadata, Reference
from hindcast.api.model import ModelOptions
from hindcast.api.options import Config
from hindcast.api.quantity import Cpus, Quantity
from hindcast.api.rules import Rule, field_value, is_empty, is_one_of
from hindcast.api.run_policy import RunPolicy
from hindcast.api.spelling import YamlWords
from hindcast.api.status import Status


class TrainStop(Model):
    """The end of the expert's training: it stops at the first criterion that holds."""

    at_least_one: ClassVar = ("episode_return_mean", "timesteps", "iterations")

    episode_return_mean: float | None = None
    """Mean return of evaluated episodes."""
    timesteps: Positive | None = None
    """Timesteps sampled from the environment."""
    iterations: Positive | None = None
    """Training iterations."""


class TrainEvaluation(Model):
    """Evaluation of the expert during its training."""

    duration: Positive = 10
    """Episodes for one evaluation."""


class TrainPolicy(Model):
    """Train an expert first, in the recording's environment, then record it."""

    algorithm: ShortText = "PPO"
    """Name of an algorithm that learns online."""
    config: Config = {}
    """The algorithm's options; omitted ones have the algorithm's defaults."""
    model: ModelOptions = ModelOptions()
    """The policy network."""
    sampler: Sampler | None = None
    """Sampling during the training, for algorithms with a replay buffer (not PPO), with an input sampler's fields and
    defaults. An iteration is 1,000 updates."""
    initial_checkpoint: Location | None = None
    """Start from the policy of this checkpoint or run folder, and from those of its other networks
    that match this algorithm's in name and shapes. Default: new networks."""
    stop: TrainStop
    """When to stop."""
    checkpoint_every: Annotated[Positive, OPERATIONAL] = 5
    """Iterations between checkpoints."""
    evaluation: TrainEvaluation = TrainEvaluation()
    """Evaluation during the training."""


class CheckpointPolicy(Model):
    """A previously trained policy."""

    path: Location
    """Folder of a checkpoint or of its `module`."""


class RandomPolicy(Model):
    """Actions drawn uniformly from the action space."""


class PolicySpec(Model):
    """The policy to record."""

    exactly_one: ClassVar = ("train", "checkpoint", "training_ref", "random")

    train: TrainPolicy | None = None
    """Train an expert first."""
    checkpoint: CheckpointPolicy | None = None
    """Load a policy."""
    training_ref: Reference | None = None
    """The best checkpoint of an OfflineTraining; the recording waits for it."""
    random: RandomPolicy | None = None
    """Act at random."""
    explore: bool = True
    """Sample actions from the policy's distribution; false takes its mode."""
    module_class: Annotated[ClassPath | None, OPERATIONAL] = None
    """Custom module class of the policy of `checkpoint` or `trainingRef`, as in its `model.moduleClass`. It must be
    named here because a checkpoint alone never causes an import."""

    @property
    def policy_module_class(self) -> str | None:
        """The import path of the policy's custom module class, if it has one."""
        return self.train.model.module_class if self.train else self.module_class


class Duration(Model):
    """The length of the recording. Episodes are always recorded to their end."""

    exactly_one: ClassVar = ("episodes", "timesteps")

    episodes: Positive | None = None
    """Number of episodes."""
    timesteps: Positive | None = None
    """Number of timesteps; the recording ends with the episode that reaches this number."""


class RunnersSpec(Model):
    """The environment runners. The recorded data do not depend on `replicas`."""

    replicas: Annotated[Positive, OPERATIONAL] = 1
    """Number of runners (processes; on a cluster, pods)."""
    envs_per_runner: Positive = 8
    """Number of environments that a runner steps at once, with one forward pass of the policy."""
    cpus: Annotated[Cpus, OPERATIONAL] = 1.0
    """CPUs per runner."""
    memory: Annotated[Quantity | None, OPERATIONAL] = None
    """Memory per runner. Default: computed."""


class OutputSpec(Model):
    """The location and format of the recorded experience."""

    rules: ClassVar = (
        Rule(
            is_one_of("encoding", "Arrow") | is_one_of("format", "Episodes"),
            "is MessagePack, which requires format Episodes, not {0}",
            field="encoding",
            values=(field_value("format"),),
        ),
        Rule(
            ~is_one_of("compression", "zstd") | is_one_of("format", "Episodes", "Columns"),
            "is zstd, but {0} is text, which is not compressed; zstd requires format Episodes or Columns",
            field="compression",
            values=(field_value("format"),),
        ),
        Rule(
            is_empty("compressColumns") | is_one_of("format", "SampleBatch"),
            "requires format SampleBatch, not {0}; to compress Parquet, set compression",
            field="compressColumns",
            values=(field_value("format"),),
        ),
    )

    path: Annotated[Location, LOCATION]
    """Folder of the dataset: a path or a URI (s3://, gs://, abfss://, hdfs://, file://)."""
    format: Literal["Episodes", "Columns", "JSON", "CSV", "SampleBatch"] = "Episodes"
    """`Episodes`: Parquet, one row per episode. `Columns`: Parquet, one row per timestep, for other tools. `JSON` and
    `CSV`: text, one line per timestep. `SampleBatch`: JSON, one episode per line, as RLlib's old stack reads it."""
    encoding: Literal["Arrow", "MessagePack"] = "Arrow"
    """Encoding of Episodes: `Arrow` (fastest) or `MessagePack` (as RLlib writes it)."""
    max_rows_per_file: Positive | None = None
    """Maximum rows per file: episodes in Episodes and SampleBatch; timesteps in Columns, JSON and CSV, in complete
    episodes. Default: no limit."""
    max_file_size: Quantity = "128Mi"
    """Approximate maximum file size."""
    compression: Annotated[Literal["lz4", "zstd", "none"], YamlWords("lz4", "zstd", "None")] = "lz4"
    """Compression of Parquet's columns. Text (JSON, CSV, SampleBatch) is never compressed: `lz4` has no effect
    there."""
    compress_columns: Annotated[list[ShortText], Field(max_length=256), ListSet()] = []
    """For SampleBatch: columns to pack, as RLlib packs `obs` and `new_obs`. Default: none."""
    recurrent_states: bool = False
    """Also write the policy's recurrent state after each step (`state_out`), for trainings with `model.initialState:
    Recorded`."""
    on_existing: Annotated[Literal["Resume", "Fail", "Replace"], OPERATIONAL] = "Resume"
    """What to do if the folder contains a dataset: `Resume` it (same spec only), `Fail`, or `Replace` the files
    that its manifest lists."""

    @property
    def is_text(self) -> bool:
        """True if the files are text rather than Parquet."""
        return self.format in ("JSON", "CSV", "SampleBatch")

    @property
    def episodes_per_file(self) -> int | None:
        """Maximum number of episodes per file, if `max_rows_per_file` counts episodes."""
        return self.max_rows_per_file if self.format in ("Episodes", "SampleBatch") else None


class OfflineRecordingSpec(Model):
    """A recording: environment, policy, length and output."""

    environment: EnvironmentSpec
    """The environment."""
    policy: PolicySpec
    """The policy to record."""
    duration: Duration
    """Length of the recording."""
    runners: RunnersSpec = RunnersSpec()
    """The environment runners."""
    output: OutputSpec
    """Location and format of the data."""
    seed: NonNegative = 0
    """Episode i is seeded by (seed, i)."""
    callbacks: Annotated[list[ClassPath], Field(max_length=16), OPERATIONAL] = []
    """Custom callback classes (`hindcast.Callbacks`), for recorded episodes and the expert's training, each
    "package.module:Class"."""
    revision: Annotated[Revision, OPERATIONAL] = 1
    """Raise it to run again with changed fields. It never decreases."""
    suspend: Annotated[bool, OPERATIONAL] = False
    """Stop at a safe point and free the nodes; false resumes from there."""
    cluster: Annotated[ClusterSpec, OPERATIONAL] = ClusterSpec()
    """Pods, storage and placement on a cluster."""
    run_policy: Annotated[RunPolicy, OPERATIONAL] = RunPolicy()
    """Deadlines, retries and clean-up on a cluster."""


class OfflineRecording(Model):
    """Runs a policy in Gymnasium environments and writes its experience to storage."""

    api_version: ApiVersion = API_VERSION
    """hindcast.dev/v1alpha1."""
    kind: Literal["OfflineRecording"] = "OfflineRecording"
    """OfflineRecording."""
    metadata: Metadata
    """Name and labels."""
    spec: OfflineRecordingSpec
    """Desired state."""
    status: Status | None = None
    """Observed state, written by the operator."""
