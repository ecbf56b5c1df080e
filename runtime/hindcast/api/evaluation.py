"""Evaluation of the policy while it is trained: in its environment, on recorded episodes, or both."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, WithJsonSchema

from hindcast.api.base import FIXED, OPERATIONAL, ClassPath, Location, Model, NonNegative, Positive
from hindcast.api.rules import (
    Rule,
    compare,
    comparison,
    difference,
    field_value,
    is_empty,
    is_one_of,
    is_set,
    is_text,
)
from hindcast.api.spelling import YamlWords

EstimateName = Literal["is", "wis", "pdis", "pdwis", "dm", "dr", "wdr"]
RATIO_ESTIMATES: Final = ("is", "wis", "pdis", "pdwis")
DOUBLY_ROBUST_ESTIMATES: Final = ("dr", "wdr")
MODEL_ESTIMATES: Final = ("dm", *DOUBLY_ROBUST_ESTIMATES)
"""Estimates that use the values of a model."""
EvaluationDuration = Annotated[
    Positive | Annotated[Literal["auto"], YamlWords("Auto")],
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 16, "minimum": 1, "pattern": "^Auto$"}),
]


class ReferenceReturns(Model):
    """Mean returns that define the normalised score."""

    rules: ClassVar = (comparison("random", "less than", "expert"),)

    random: float
    """Mean return of a policy that acts at random."""
    expert: float
    """Mean return of an expert."""


class OfflineEvaluationSpec(Model):
    """Evaluation on recorded episodes: the loss over their timesteps, cheap signals (docs/evaluation.md), and estimates
    of the return with a verdict.
    """

    exactly_one: ClassVar = ("held_out", "input")

    held_out: Annotated[float | None, Field(gt=0, lt=1), FIXED] = None
    """Share of the recorded episodes (of those that `setAside` leaves) that evaluate the policy and are never trained
    on, selected as by `hindcast data split`. It can only change with the revision."""
    held_out_seed: Annotated[NonNegative | None, FIXED] = None
    """Seed for the selection of the held-out episodes. Trainings with equal seeds are evaluated on the same episodes.
    Default: 0."""
    set_aside: Annotated[float | None, Field(gt=0, lt=1), FIXED] = None
    """Share of the recorded episodes that neither train nor evaluate the policy, selected with `heldOutSeed` before
    `heldOut`: they give a last estimate of a policy that was chosen among many. Default: none."""
    input: Annotated[list[Location], Field(min_length=1, max_length=16)] | None = None
    """Recorded episodes that are not in `spec.input`: files, folders or globs, by path or URI."""
    interval: Positive | None = None
    """Training iterations between evaluations. Default: once, at the end."""
    estimates: Annotated[list[EstimateName], Field(max_length=7)] = []
    """Estimates of the policy's discounted return: `is`, `wis`, `pdis` and `pdwis` use importance sampling, `dm` a
    model of the policy's values, `dr` and `wdr` both. The first one selects the best checkpoint, and is the value for
    `stop.estimatedReturn`. Default: none; the loss and the signals are still computed."""
    explore: bool = False
    """Evaluate the policy with sampled actions. Otherwise it takes the most likely ones, and continuous actions only
    allow `dm`."""
    gamma: Annotated[float, Field(ge=0, le=1)] | None = None
    """Discount of the estimates. Default: the algorithm's, else 0.99."""
    clip: Annotated[float, Field(ge=1)] | None = None
    """Upper bound on each step's importance ratio. Default: none."""
    model_updates: Positive = 10_000
    """Updates of the model that `dm`, `dr` and `wdr` fit in each evaluation."""


class ReturnRange(Model):
    """Bounds of an episode's discounted return."""

    rules: ClassVar = (comparison("low", "less than", "high"),)

    low: float
    """Lowest possible return."""
    high: float
    """Highest possible return."""


_RETURN_SPAN: Final = difference("returns.high", "returns.low")
_IS_RANGE: Final = compare(field_value("returns.low"), "less than", field_value("returns.high"))


class GateSpec(Model):
    """A test of the policy against the recorded policy on a log that grows. `hindcast gate` may look at any time,
    and as often as wanted: the probability `error` still holds.
    """

    rules: ClassVar = (
        Rule(
            (is_set("by") & _IS_RANGE).implies(compare(field_value("by"), "less than", _RETURN_SPAN)),
            "must be less than @returns.high - @returns.low",
            field="by",
        ),
    )

    returns: ReturnRange
    """Bounds of an episode's discounted return. A look at a log with an episode outside of them fails."""
    by: Annotated[float, Field(ge=0)] = 0.0
    """Gain in discounted return that the policy must exceed. Default: 0."""
    error: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Probability of promoting a policy that is not better, over all looks and candidates."""
    candidates: Positive = 1
    """Number of policies that are tested, each with its own gate; they share `error`."""
    explore: bool = False
    """Test the policy with sampled actions. Otherwise it takes the most likely ones."""


_IS_GATE_SAMPLED: Final = is_one_of("gate.explore", True)
_IS_OFFLINE_SAMPLED: Final = is_one_of("offline.explore", True)
_IS_PARALLEL: Final = is_one_of("parallelToTraining", True)


class EvaluationSpec(Model):
    """Evaluation of the policy during training, seeded and vectorised. The weights of the best evaluation are kept. All
    fields except `offline` and `gate` apply to episodes played in `spec.environment`.
    """

    rules: ClassVar = (
        Rule(
            is_text("duration").implies(_IS_PARALLEL),
            "is Auto, which requires parallelToTraining: true",
            field="duration",
        ),
        Rule(
            ~is_set("customFunction") | ~_IS_PARALLEL,
            "excludes parallelToTraining: custom functions run in the driver only",
            field="customFunction",
        ),
        Rule(
            (is_set("gate") & ~is_empty("offline.estimates")).implies(
                (_IS_GATE_SAMPLED & _IS_OFFLINE_SAMPLED) | (~_IS_GATE_SAMPLED & ~_IS_OFFLINE_SAMPLED)
            ),
            "must equal @offline.explore, so that the evaluated policy is promoted",
            field="gate.explore",
            checked_by="loader",  # resources that earlier versions accepted stay valid on the API server
        ),
    )

    interval: Positive | None = None
    """Training iterations between evaluations. Default: once, at the end."""
    duration: EvaluationDuration = 10
    """Length of one evaluation; `Auto` (with parallelToTraining) lasts as long as the training iteration."""
    duration_unit: Annotated[Literal["episodes", "timesteps"], YamlWords("Episodes", "Timesteps")] = (
        "episodes"
    )
    """What `duration` counts."""
    runners: Annotated[NonNegative, OPERATIONAL] = 0
    """Evaluation runners; 0 evaluates in the driver's process, or on one runner with parallelToTraining."""
    envs_per_runner: Positive | None = None
    """Number of environments that a runner steps at once. Default: min(duration, 8)."""
    parallel_to_training: bool = False
    """Evaluate while training continues; the result is used one iteration later."""
    explore: bool = False
    """Sample actions instead of taking the mode."""
    reference_returns: ReferenceReturns | None = None
    """Returns of a random policy and of an expert. Results then have a `normalised_score`: 0 for the first, 100 for the
    second."""
    sample_timeout_seconds: Annotated[float, Field(gt=0), OPERATIONAL] = 120.0
    """Timeout of an evaluation, in seconds."""
    custom_function: ClassPath | None = None
    """A custom evaluation, "package.module:function", called in the driver's process with (policy, environment,
    seed), or with RLlib's (algorithm, eval_workers). It returns metrics by name."""
    offline: OfflineEvaluationSpec | None = None
    """Evaluation on recorded episodes, which requires no environment. Default: none."""
    gate: Annotated[GateSpec | None, FIXED] = None
    """Conditions for the promotion of the trained policy, for `hindcast gate`. They can only change with the revision.
    Default: none."""

    @property
    def judges_samples(self) -> bool:
        """True if the policy is judged by sampled actions, False if by greedy ones.

        The gate counts first, then estimates from recorded episodes, then the evaluation in the environment.
        """
        if self.gate is not None:
            return self.gate.explore
        if self.offline is not None and (self.offline.estimates or self.offline.explore):
            return self.offline.explore
        return self.explore

    @property
    def num_runners(self) -> int:
        """Number of processes that evaluate in the environment; 0 if the driver's process does."""
        return 0 if self.custom_function is not None else max(self.runners, int(self.parallel_to_training))
