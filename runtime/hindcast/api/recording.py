"""OfflineRecording: run a policy in environments and write its experience to storage."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

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
    Rule,
    ShortText,
)
from hindcast.api.cluster import ClusterSpec
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.input import Sampler
from hindcast.api.metadata import Metadata, Reference
from hindcast.api.model import ModelSpec
from hindcast.api.quantity import Quantity
from hindcast.api.run_policy import RunPolicy
from hindcast.api.status import Status


class TrainStop(Model):
    """When the expert is good enough. The first criterion that holds ends its training."""

    at_least_one: ClassVar = ("episode_return_mean", "timesteps", "iterations")

    episode_return_mean: float | None = None
    """Mean return of evaluated episodes."""
    timesteps: Positive | None = None
    """Timesteps sampled from the environment."""
    iterations: Positive | None = None
    """Training iterations."""


class TrainEvaluation(Model):
    """How the expert is evaluated while it is trained."""

    duration: Positive = 10
    """Episodes for one evaluation."""


class TrainPolicy(Model):
    """Train an expert first, in the recording's environment, then record it."""

    algorithm: ShortText = "PPO"
    """An online algorithm."""
    config: dict[str, Any] = {}
    """The algorithm's options; those not given have the algorithm's defaults."""
    model: ModelSpec = ModelSpec()
    """The policy network."""
    sampler: Sampler | None = None
    """How much it plays while it is trained, of algorithms that keep what they have played (not PPO). Default: as of an
    input's sampler; an iteration is 1,000 updates."""
    initial_checkpoint: Location | None = None
    """Start from the policy of this checkpoint or run folder, and from its other networks where they have the name and
    the shapes of this algorithm's. Default: new networks."""
    stop: TrainStop
    """When to stop."""
    checkpoint_every: Annotated[Positive, OPERATIONAL] = 5
    """Iterations between checkpoints."""
    evaluation: TrainEvaluation = TrainEvaluation()
    """How it is evaluated."""


class CheckpointPolicy(Model):
    """A policy that was trained before."""

    path: Location
    """Folder of a checkpoint or of its `module`."""


class RandomPolicy(Model):
    """Actions drawn uniformly from the action space."""


class PolicySpec(Model):
    """Who acts."""

    exactly_one: ClassVar = ("train", "checkpoint", "training_ref", "random")

    train: TrainPolicy | None = None
    """Train an expert first."""
    checkpoint: CheckpointPolicy | None = None
    """Load a policy."""
    training_ref: Reference | None = None
    """The best checkpoint of an OfflineTraining, which is waited for."""
    random: RandomPolicy | None = None
    """Act at random."""
    explore: bool = True
    """Sample actions from the policy's distribution; false takes its mode."""
    module_class: Annotated[ClassPath | None, OPERATIONAL] = None
    """The `model.moduleClass` of the policy of `checkpoint` or `trainingRef`: no class is imported because a checkpoint
    names it."""

    @property
    def own_class(self) -> str | None:
        """The path of the policy's class where it is the user's own."""
        return self.train.model.module_class if self.train else self.module_class


class Duration(Model):
    """How much is recorded. Episodes are always recorded to their end."""

    exactly_one: ClassVar = ("episodes", "timesteps")

    episodes: Positive | None = None
    """Number of episodes."""
    timesteps: Positive | None = None
    """Number of timesteps; the fewest episodes, in order, that reach it are kept."""


class RunnersSpec(Model):
    """The environment runners. The recorded data do not depend on `replicas`."""

    replicas: Annotated[Positive, OPERATIONAL] = 1
    """Number of runners (processes; on a cluster, pods)."""
    envs_per_runner: Positive = 8
    """Environments that a runner steps at once, in one forward pass of the policy."""
    cpus: Annotated[float, Field(gt=0), OPERATIONAL] = 1.0
    """CPUs a runner."""
    memory: Annotated[Quantity | None, OPERATIONAL] = None
    """Memory a runner. Default: computed."""


class OutputSpec(Model):
    """Where and how the experience is written."""

    rules: ClassVar = (
        Rule(
            "self.encoding == 'Arrow' || self.format == 'Episodes'",
            "encoding MessagePack needs format Episodes",
            at=".encoding",
        ),
        Rule(
            "!has(self.compressColumns) || self.compressColumns.size() == 0 || self.format == 'SampleBatch'",
            "compressColumns needs format SampleBatch; Parquet's columns are compressed by compression",
            at=".compressColumns",
        ),
    )

    path: Annotated[Location, LOCATION]
    """Folder of the dataset: a path or a URI (s3://, gs://, abfss://, hdfs://, file://)."""
    format: Literal["Episodes", "Columns", "JSON", "CSV", "SampleBatch"] = "Episodes"
    """`Episodes`: Parquet, one row per episode. `Columns`: Parquet, one row per timestep, for other tools. `JSON` and
    `CSV`: text, one line per timestep. `SampleBatch`: JSON, one episode a line, as RLlib's old stack reads it."""
    encoding: Literal["Arrow", "MessagePack"] = "Arrow"
    """Of Episodes: `Arrow` (fastest) or `MessagePack` (as RLlib writes it)."""
    max_rows_per_file: Positive | None = None
    """Most rows of a file: episodes in Episodes and SampleBatch; timesteps in Columns, JSON and CSV, in whole
    episodes. Default: no limit."""
    max_file_size: Quantity = "128Mi"
    """Most bytes of a file, about."""
    compression: Literal["lz4", "zstd", "none"] = "lz4"
    """Compression of Parquet's columns. Text (JSON, CSV, SampleBatch) is written plain: `lz4`, the default, does
    nothing there."""
    compress_columns: Annotated[list[ShortText], Field(max_length=256)] = []
    """Of SampleBatch: columns that are packed, as RLlib packs `obs` and `new_obs`. Default: none."""
    recurrent_states: bool = False
    """Also write the policy's recurrent state after each step (`state_out`), for trainings with `model.initialState:
    recorded`."""
    on_existing: Annotated[Literal["Resume", "Fail", "Replace"], OPERATIONAL] = "Resume"
    """When the folder holds a dataset: `Resume` it (of the same spec only), `Fail`, or `Replace` the files
    that its manifest lists."""

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        if self.encoding == "MessagePack" and self.format != "Episodes":
            raise ValueError(
                f"has encoding MessagePack with format {self.format}; MessagePack needs format Episodes"
            )
        if self.compression == "zstd" and self.is_text:
            raise ValueError(
                f"has compression zstd with format {self.format}; text is written plain, and zstd needs format "
                "Episodes or Columns"
            )
        if self.compress_columns and self.format != "SampleBatch":
            raise ValueError(
                f"has compressColumns with format {self.format}; columns are packed in format SampleBatch, and "
                "Parquet's are compressed by `compression`"
            )
        return self

    @property
    def is_text(self) -> bool:
        """Whether the files are text rather than Parquet."""
        return self.format in ("JSON", "CSV", "SampleBatch")

    @property
    def episodes_per_file(self) -> int | None:
        """Most episodes of a file, where `max_rows_per_file` counts these."""
        return self.max_rows_per_file if self.format in ("Episodes", "SampleBatch") else None


class OfflineRecordingSpec(Model):
    """What is recorded, by whom, how much, and where to."""

    environment: EnvironmentSpec
    """The environment."""
    policy: PolicySpec
    """Who acts."""
    duration: Duration
    """How much is recorded."""
    runners: RunnersSpec = RunnersSpec()
    """The environment runners."""
    output: OutputSpec
    """Where and how it is written."""
    seed: NonNegative = 0
    """Episode i is seeded by (seed, i)."""
    callbacks: Annotated[list[ClassPath], Field(max_length=16), OPERATIONAL] = []
    """Classes of one's own that hear what is played, and how the expert's training goes (`hindcast.Callbacks`), each
    "package.module:Class"."""
    revision: Annotated[Revision, OPERATIONAL] = 1
    """Raise it to run again with changed fields. It never decreases."""
    suspend: Annotated[bool, OPERATIONAL] = False
    """Stop at a safe point and free the nodes; false goes on from there."""
    cluster: Annotated[ClusterSpec, OPERATIONAL] = ClusterSpec()
    """How the run sits on a cluster."""
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
    """What is wanted."""
    status: Status | None = None
    """What is; written by the operator."""
