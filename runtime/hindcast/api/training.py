"""OfflineTraining: train a policy from recorded experience."""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from hindcast.api.base import (
    API_VERSION,
    EXTENDABLE,
    LOCATION,
    OPERATIONAL,
    ApiVersion,
    ClassPath,
    FreeForm,
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
from hindcast.api.evaluation import EvaluationSpec, OfflineEvaluationSpec
from hindcast.api.input import ONLY_WEIGHT_WITH_SAMPLER, InputSource, Sampler
from hindcast.api.metadata import Metadata
from hindcast.api.model import ModelSpec
from hindcast.api.options import Config
from hindcast.api.pipeline import PipelineSpec
from hindcast.api.quantity import Cpus, Quantity
from hindcast.api.run_policy import RunPolicy
from hindcast.api.spaces import SpaceSpec
from hindcast.api.spelling import YamlWords
from hindcast.api.status import Status


class LearnersSpec(Model):
    """The learners. The global batch is trainBatchSizePerLearner times `replicas` at the revision's start."""

    replicas: Annotated[Positive, OPERATIONAL] = 1
    """Number of learners (data parallel)."""
    cpus: Annotated[Cpus | None, OPERATIONAL] = None
    """CPUs per learner. Default: 1, or with a GPU as many as its data loading needs."""
    gpus: Annotated[float, Field(ge=0), OPERATIONAL] = 0.0
    """GPUs per learner."""
    memory: Annotated[Quantity | None, OPERATIONAL] = None
    """Memory per learner. Default: computed."""
    device: Annotated[Literal["auto", "cpu", "cuda"], YamlWords("Auto", "cpu", "cuda"), OPERATIONAL] = "auto"
    """`Auto` uses a GPU if there is one."""
    compile: Annotated[bool, OPERATIONAL] = False
    """Compile the losses with torch.compile, for algorithms that support it."""


class StopSpec(Model):
    """The end of the training: it stops at the first criterion that holds."""

    at_least_one: ClassVar = (
        "episode_return_mean",
        "estimated_return",
        "validation_loss",
        "iterations",
        "timesteps",
        "updates",
        "epochs",
    )

    episode_return_mean: float | None = None
    """Mean return of an evaluation (requires `evaluation.interval`)."""
    estimated_return: float | None = None
    """Value of the first entry of `evaluation.offline.estimates` (requires `evaluation.offline.interval`)."""
    validation_loss: float | None = None
    """Loss over held-out timesteps at or below this value (requires `evaluation.offline.interval`)."""
    iterations: Positive | None = None
    """Training iterations."""
    timesteps: Positive | None = None
    """Timesteps trained on."""
    updates: Positive | None = None
    """Gradient updates."""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the data."""


class CheckpointSpec(Model):
    """The location of the run folder and its contents."""

    path: Annotated[Location, LOCATION] = "runs"
    """Parent folder: the run folder is `<path>/<name>/r<revision>`."""
    every: Annotated[Positive, OPERATIONAL] = 10
    """Iterations between checkpoints. The last state is always saved."""
    keep: Annotated[Positive, OPERATIONAL] = 3
    """Number of recent checkpoints to keep in addition to the best."""


_OFFLINE_INTERVAL: Final = (
    "has(self.evaluation) && has(self.evaluation.offline) && has(self.evaluation.offline.interval)"
)


class OfflineTrainingSpec(Model):
    """A training: algorithm, network, data, evaluation and end."""

    rules: ClassVar = (
        Rule(
            "self.input.all(source, has(source.weight)) || self.input.all(source, !has(source.weight))",
            "only some entries of input have weights; give one to each, or to none",
            field_path=".input",
        ),
        Rule(
            "has(self.environment) || self.input.all(source, !has(source.sampler))",
            "input has a sampler, but the spec has no environment to sample from",
            field_path=".input",
        ),
        Rule(
            "self.input.size() == 1 || self.input.all(source, !has(source.sampler) || has(source.weight))",
            "a sampler combined with other inputs needs weights; give one to each",
            field_path=".input",
        ),
        Rule(
            "self.input.all(source, !has(source.sampler) || (source.format == 'Auto' && !has(source.top) && "
            "!has(source.columns) && (!has(source.filter) || source.filter.size() == 0)))",
            ONLY_WEIGHT_WITH_SAMPLER,
            field_path=".input",
        ),
        Rule(
            "self.input.filter(source, has(source.sampler)).size() <= 1",
            "input has several samplers; give one",
            field_path=".input",
        ),
        Rule(
            "!has(self.stop.epochs) || self.input.all(source, !has(source.sampler))",
            "stop.epochs counts passes over recorded data only; with a sampler use updates or timesteps",
            field_path=".stop.epochs",
        ),
        Rule(
            "(has(self.environment) || !has(self.evaluation)) || has(self.evaluation.offline) || "
            "has(self.evaluation.gate)",
            "evaluation requires an environment to evaluate in, evaluation.offline or evaluation.gate",
            field_path=".evaluation",
        ),
        Rule(
            "!has(self.stop.episodeReturnMean) || (has(self.evaluation) && has(self.evaluation.interval))",
            "stop.episodeReturnMean requires evaluation.interval to measure it",
            field_path=".stop.episodeReturnMean",
        ),
        Rule(
            "!has(self.stop.episodeReturnMean) || has(self.environment)",
            "stop.episodeReturnMean requires an environment to measure it",
            field_path=".evaluation.offline",
        ),
        Rule(
            f"!has(self.stop.estimatedReturn) || ({_OFFLINE_INTERVAL} && "
            "has(self.evaluation.offline.estimates) && self.evaluation.offline.estimates.size() > 0)",
            "stop.estimatedReturn requires evaluation.offline with an interval and estimates to compute it",
            field_path=".stop.estimatedReturn",
        ),
        Rule(
            f"!has(self.stop.validationLoss) || ({_OFFLINE_INTERVAL})",
            "stop.validationLoss requires evaluation.offline.interval to compute it",
            field_path=".stop.validationLoss",
        ),
        Rule(
            "!has(self.evaluation) || !has(self.evaluation.offline) || !has(self.evaluation.offline.heldOut) || "
            "self.input.exists(source, !has(source.sampler))",
            "evaluation.offline.heldOut requires recorded data in input; or use evaluation.offline.input",
            field_path=".evaluation.offline.heldOut",
        ),
        Rule(
            "!has(self.evaluation) || !has(self.evaluation.offline) || !has(self.evaluation.offline.setAside) || "
            "self.input.exists(source, !has(source.sampler))",
            "evaluation.offline.setAside requires recorded data in input",
            field_path=".evaluation.offline.setAside",
        ),
        Rule(
            "has(self.customConfig) ? self.algorithm.contains(':') : true",
            "customConfig is for custom algorithms; use config",
            field_path=".customConfig",
        ),
        Rule(
            "!has(self.config) || !self.algorithm.contains(':')",
            "config does not apply to a custom algorithm; use customConfig",
            field_path=".config",
        ),
    )

    algorithm: ShortText
    """Name of an algorithm, or "package.module:Class" for a custom one."""
    config: Config = {}
    """The algorithm's options; omitted ones have the algorithm's defaults."""
    custom_config: FreeForm | None = None
    """Options of a custom algorithm, in place of `config`."""
    model: ModelSpec = ModelSpec()
    """The policy network."""
    environment: EnvironmentSpec | None = None
    """The simulator for evaluation. Default: none; spaces come from the data or the fields below."""
    observation_space: SpaceSpec | None = None
    """Observation space. Default: the environment's, else the one recorded with the data."""
    action_space: SpaceSpec | None = None
    """Action space. Default: the environment's, else the one recorded with the data."""
    input: Annotated[list[InputSource], Field(min_length=1, max_length=64)]
    """The data. Several sources without weights are read as one dataset; with weights they are mixed. A sampler alone
    trains in the environment, without recorded data."""
    pipeline: PipelineSpec = PipelineSpec()
    """The data pipeline."""
    learners: LearnersSpec = LearnersSpec()
    """The learners."""
    evaluation: Annotated[EvaluationSpec | None, EXTENDABLE] = None
    """Evaluation, in the environment or on recorded episodes. Default: none. Changes apply from the next attempt on."""
    stop: Annotated[StopSpec, EXTENDABLE]
    """The end of the training. If raised, even after the end, the run continues as if the new value had been set from
    the start."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """The location of the run folder and its contents."""
    initial_checkpoint: Location | None = None
    """Start from the policy of this checkpoint or run folder (warm start, fine-tuning), and from those of its other
    networks (critics, multipliers) that match this training's in name and shapes."""
    seed: NonNegative = 0
    """Seed of the order of the data, of the initial weights and of evaluation."""
    callbacks: Annotated[list[ClassPath], Field(max_length=16), OPERATIONAL] = []
    """Custom callback classes (`hindcast.Callbacks`), each "package.module:Class"."""
    revision: Annotated[Revision, OPERATIONAL] = 1
    """Raise it to run again with changed fields. It never decreases."""
    suspend: Annotated[bool, OPERATIONAL] = False
    """Checkpoint, stop and free the nodes; false resumes from the checkpoint."""
    cluster: Annotated[ClusterSpec, OPERATIONAL] = ClusterSpec()
    """Pods, storage and placement on a cluster."""
    run_policy: Annotated[RunPolicy, OPERATIONAL] = RunPolicy()
    """Deadlines, retries and clean-up on a cluster."""

    @property
    def sampler(self) -> Sampler | None:
        """The sampler among the inputs, if any."""
        return next((source.sampler for source in self.input if source.sampler is not None), None)

    @property
    def recorded_inputs(self) -> list[InputSource]:
        """The inputs that are recorded data."""
        return [source for source in self.input if source.sampler is None]

    @property
    def offline(self) -> OfflineEvaluationSpec | None:
        """The evaluation on recorded episodes, if any."""
        return None if self.evaluation is None else self.evaluation.offline

    @property
    def evaluation_in_environment(self) -> EvaluationSpec | None:
        """The evaluation in the environment, if any."""
        return None if self.environment is None else self.evaluation

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        has_weight = [source.weight is not None for source in self.input]
        if any(has_weight) and not all(has_weight):
            raise ValueError("has weights on some entries of input only; give one to each, or to none")
        return self

    @model_validator(mode="after")
    def _check_sampler(self) -> Self:
        samplers = [source for source in self.input if source.sampler is not None]
        if not samplers:
            return self
        if self.environment is None:
            raise ValueError("has a sampler in input but no environment to sample from")
        if len(samplers) > 1:
            raise ValueError(f"has {len(samplers)} samplers in input; give one")
        if len(self.input) > 1 and samplers[0].weight is None:
            raise ValueError("combines a sampler with other inputs, which needs weights; give one to each")
        if self.stop.epochs is not None:
            raise ValueError(
                "has stop.epochs, which counts passes over recorded data only; with a sampler use updates"
            )
        return self

    @model_validator(mode="after")
    def _check_evaluation(self) -> Self:
        environment_evaluation = self.evaluation_in_environment
        if (
            self.evaluation is not None
            and environment_evaluation is None
            and self.offline is None
            and self.evaluation.gate is None
        ):
            raise ValueError("has evaluation but no environment to evaluate in")
        target = self.stop.episode_return_mean
        if target is not None and (environment_evaluation is None or environment_evaluation.interval is None):
            raise ValueError("has stop.episodeReturnMean but no evaluation.interval to measure it")
        return self

    @model_validator(mode="after")
    def _check_offline(self) -> Self:
        offline, stop = self.offline, self.stop
        has_interval = offline is not None and offline.interval is not None
        if stop.estimated_return is not None and not (has_interval and offline and offline.estimates):
            raise ValueError(
                "has stop.estimatedReturn but no evaluation.offline with an interval and estimates to compute it"
            )
        if stop.validation_loss is not None and not has_interval:
            raise ValueError("has stop.validationLoss but no evaluation.offline.interval to compute it")
        if offline is not None and offline.held_out is not None and not self.recorded_inputs:
            raise ValueError(
                "has evaluation.offline.heldOut but no recorded data to hold out; use evaluation.offline.input"
            )
        if offline is not None and offline.set_aside is not None and not self.recorded_inputs:
            raise ValueError("has evaluation.offline.setAside but no recorded data to set aside")
        return self

    @model_validator(mode="after")
    def _check_algorithm(self) -> Self:
        is_custom = ":" in self.algorithm
        if is_custom and self.config:
            raise ValueError(f"has config for {self.algorithm}; use customConfig for a custom algorithm")
        if not is_custom and self.custom_config is not None:
            raise ValueError(
                f"has customConfig for {self.algorithm}; it is for custom algorithms, use config"
            )
        return self


class OfflineTraining(Model):
    """Trains a policy from recorded experience."""

    api_version: ApiVersion = API_VERSION
    """hindcast.dev/v1alpha1."""
    kind: Literal["OfflineTraining"] = "OfflineTraining"
    """OfflineTraining."""
    metadata: Metadata
    """Name and labels."""
    spec: OfflineTrainingSpec
    """Desired state."""
    status: Status | None = None
    """Observed state, written by the operator."""
