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
    ShortText,
)
from hindcast.api.cluster import ClusterSpec
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.evaluation import EvaluationSpec, OfflineEvaluationSpec
from hindcast.api.input import InputSource, MissingRule, Sampler
from hindcast.api.metadata import Metadata
from hindcast.api.model import ModelOptions
from hindcast.api.options import Config
from hindcast.api.pipeline import PipelineSpec
from hindcast.api.quantity import Cpus, Quantity
from hindcast.api.rules import (
    Rule,
    at_most_one,
    every,
    has_one_entry,
    is_empty,
    is_one_of,
    is_set,
    matches,
    raise_problems,
)
from hindcast.api.run_policy import RunPolicy
from hindcast.api.spaces import SpaceSpec
from hindcast.api.spelling import YamlWords
from hindcast.api.status import Status


class LearnersSpec(Model):
    """The learners. The global batch is trainBatchSizePerLearner times `replicas` at the revision's start."""

    replicas: Annotated[Positive, OPERATIONAL] = 1
    """Number of replicas (data parallel), each with one learner, or with one for each of its GPUs."""
    cpus: Annotated[Cpus | None, OPERATIONAL] = None
    """CPUs of each replica. Default: 1, or with a GPU as many as its data loading needs."""
    gpus: Annotated[float, Field(ge=0), OPERATIONAL] = 0.0
    """GPUs of each replica, which has one learner for each of them."""
    memory: Annotated[Quantity | None, OPERATIONAL] = None
    """Memory of each replica. Default: computed."""
    device: Annotated[Literal["auto", "cpu", "cuda"], YamlWords("Auto", "cpu", "cuda"), OPERATIONAL] = "auto"
    """`Auto` uses a GPU if there is one."""
    compile: Annotated[bool, OPERATIONAL] = False
    """Compile the losses with torch.compile, for algorithms that support it."""

    @property
    def processes_per_replica(self) -> int:
        """Number of learners' processes of a replica: one for each of its GPUs."""
        return 1 if self.device == "cpu" else max(1, int(self.gpus))

    @property
    def num_processes(self) -> int:
        """Number of learners' processes of all replicas."""
        return self.replicas * self.processes_per_replica


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


_IS_RECORDED: Final = ~is_set("sampler")
_ONLY_RECORDED: Final = every("input", _IS_RECORDED)
_HAS_RECORDED: Final = ~every("input", ~_IS_RECORDED)
_HAS_WEIGHT: Final = is_set("weight")
_IS_CUSTOM: Final = matches("algorithm", ":")
_HAS_OFFLINE_INTERVAL: Final = is_set("evaluation.offline.interval")


class RewardsSpec(Model):
    """Rewards that the algorithm learns from: scale · (r + shift) / n, clipped to ±clip."""

    scale: Annotated[float, Field(gt=0)] = 1.0
    """Factor: IQL's paper scales returns to a range of 1000 in locomotion."""
    shift: float = 0.0
    """Added to each reward first: -1 in AntMaze, where each step then costs 1."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Bound on the absolute value of the result. Default: none."""
    normalize: Annotated[Literal["none", "returnRange", "std"], YamlWords("None", "ReturnRange", "Std")] = (
        "none"
    )
    """The divisor n, fitted to the first window of the data and saved with the policy: 1, the range of the episodes'
    returns, or the standard deviation of the rewards."""


class OfflineTrainingSpec(Model):
    """A training: algorithm, network, data, evaluation and end."""

    rules: ClassVar = (
        Rule(
            every("input", _HAS_WEIGHT) | every("input", ~_HAS_WEIGHT),
            "has weights on some entries only; give one to each, or to none",
            field="input",
        ),
        Rule(
            is_set("environment") | _ONLY_RECORDED,
            "has a sampler, but the spec has no environment to sample from",
            field="input",
        ),
        Rule(
            has_one_entry("input") | every("input", _IS_RECORDED | _HAS_WEIGHT),
            "combines a sampler with other inputs, which requires weights; give one to each",
            field="input",
        ),
        Rule(at_most_one("input", ~_IS_RECORDED), "has several samplers; keep one", field="input"),
        Rule(
            is_set("stop.epochs").implies(_ONLY_RECORDED),
            "counts passes over recorded data only; with a sampler, use updates or timesteps",
            field="stop.epochs",
        ),
        Rule(
            is_set("evaluation").implies(
                is_set("environment") | is_set("evaluation.offline") | is_set("evaluation.gate")
            ),
            "requires an environment to evaluate in, evaluation.offline or evaluation.gate",
            field="evaluation",
        ),
        Rule(
            is_set("stop.episodeReturnMean").implies(is_set("evaluation.interval")),
            "requires evaluation.interval to measure it",
            field="stop.episodeReturnMean",
        ),
        Rule(
            is_set("stop.episodeReturnMean").implies(is_set("environment")),
            "requires an environment to measure it",
            field="stop.episodeReturnMean",
        ),
        Rule(
            is_set("stop.estimatedReturn").implies(
                _HAS_OFFLINE_INTERVAL & ~is_empty("evaluation.offline.estimates")
            ),
            "requires evaluation.offline with an interval and estimates to compute it",
            field="stop.estimatedReturn",
        ),
        Rule(
            is_set("stop.validationLoss").implies(_HAS_OFFLINE_INTERVAL),
            "requires evaluation.offline.interval to compute it",
            field="stop.validationLoss",
        ),
        Rule(
            is_set("evaluation.offline.heldOut").implies(_HAS_RECORDED),
            "requires recorded data in input; or use evaluation.offline.input",
            field="evaluation.offline.heldOut",
        ),
        Rule(
            is_set("evaluation.offline.setAside").implies(_HAS_RECORDED),
            "requires recorded data in input",
            field="evaluation.offline.setAside",
        ),
        Rule(
            is_set("customConfig").implies(_IS_CUSTOM),
            "is for custom algorithms; use config",
            field="customConfig",
        ),
        Rule(
            is_set("config").implies(~_IS_CUSTOM),
            "does not apply to a custom algorithm; use customConfig",
            field="config",
        ),
        Rule(
            is_set("rewards").implies(~is_one_of("algorithm", "DecisionTransformer")),
            "does not apply to DecisionTransformer, which scales returns itself (config.returnScale)",
            field="rewards",
        ),
    )

    algorithm: ShortText
    """Name of an algorithm, or "package.module:Class" for a custom one."""
    config: Config = {}
    """The algorithm's options; omitted ones have the algorithm's defaults."""
    custom_config: FreeForm | None = None
    """Options of a custom algorithm, in place of `config`."""
    model: ModelOptions = ModelOptions()
    """The policy network."""
    rewards: RewardsSpec | None = None
    """Changes of the rewards that the algorithm learns from. Evaluations and estimates report recorded rewards; the
    metrics of critics do so, too, unless rewards are shifted or clipped. Default: none."""
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
    def missing_rules(self) -> dict[str, MissingRule]:
        """The rules of `prepare.missing` of all inputs, by column."""
        return {
            name: rule for source in self.recorded_inputs for name, rule in source.prepare.missing.items()
        }

    @property
    def missing_indicators(self) -> bool:
        """Whether the policy sees which values were missing."""
        return any(source.prepare.missing_indicators for source in self.recorded_inputs)

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        problem, problems = "", []
        if self.algorithm == "DecisionTransformer":
            problem = "has no effect on DecisionTransformer, whose returns are not discounted; leave it out"
        elif self.sampler is not None:
            problem = "does not combine with a sampler, whose steps have no times"
        times = [(index, source.time) for index, source in enumerate(self.input) if source.time is not None]
        for index, time in times:
            first_index, first_time = times[0]
            path, first_path = f"input[{index}].time", f"input[{first_index}]"
            if problem and self.input[index].sampler is None:  # a rule of InputSource excludes both
                problems.append((path, problem))
            if time.observe != first_time.observe:
                text = f"differs from that of {first_path}: set it in both, or in none"
                problems.append((f"{path}.observe", text))
            # Numbers may differ: columns may count in different units.
            units = {time.unit, first_time.unit}
            if len(units) > 1 and all(isinstance(unit, str) for unit in units):
                text = f"is {time.unit}, but that of {first_path} is {first_time.unit}: gamma discounts per unit, "
                problems.append((f"{path}.unit", f"{text}so set the same unit"))
        raise_problems(problems)
        return self

    @model_validator(mode="after")
    def _check_missing_rules(self) -> Self:
        rules = self.missing_rules
        raise_problems(
            [
                (
                    f"input[{index}].prepare.missing",
                    f"has {rule!r} for {name!r}, but another input has {rules[name]!r}: the policy has one rule for "
                    "each column",
                )
                for index, source in enumerate(self.input)
                for name, rule in source.prepare.missing.items()
                if rules.get(name, rule) != rule  # a sampler has no rules
            ]
        )
        return self

    @property
    def offline(self) -> OfflineEvaluationSpec | None:
        """The evaluation on recorded episodes, if any."""
        return None if self.evaluation is None else self.evaluation.offline

    @property
    def evaluation_in_environment(self) -> EvaluationSpec | None:
        """The evaluation in the environment, if any."""
        return None if self.environment is None else self.evaluation


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
