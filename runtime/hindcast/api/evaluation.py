"""Evaluation of the policy while it is trained: in its environment, by recorded episodes, or both."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from hindcast.api.base import FIXED, OPERATIONAL, ClassPath, Location, Model, NonNegative, Positive, Rule
from hindcast.api.spelling import YamlWords

EstimateName = Literal["is", "wis", "pdis", "pdwis", "dm", "dr", "wdr"]
EvaluationDuration = Annotated[
    Positive | Annotated[Literal["auto"], YamlWords("Auto")],
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 16, "minimum": 1, "pattern": "^Auto$"}),
]


class ReferenceReturns(Model):
    """Mean returns that a score is normalised by."""

    rules: ClassVar = (
        Rule("self.random < self.expert", "random must be below expert", field_path=".random"),
    )

    random: float
    """Of a policy that acts at random."""
    expert: float
    """Of an expert."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.random >= self.expert:
            raise ValueError(f"has random {self.random:g}, which must be below expert {self.expert:g}")
        return self


class OfflineEvaluationSpec(Model):
    """The loss over all held-out timesteps, cheap signals, and estimates of the return with a verdict on them."""

    exactly_one: ClassVar = ("held_out", "input")

    held_out: Annotated[float | None, Field(gt=0, lt=1), FIXED] = None
    """Share of the recorded episodes that are never trained on and evaluate the policy, selected as by
    `hindcast data split`. It can only change with the revision."""
    held_out_seed: Annotated[NonNegative | None, FIXED] = None
    """Seed of that selection; trainings with equal seeds are evaluated on the same episodes. Default: 0."""
    set_aside: Annotated[float | None, Field(gt=0, lt=1), FIXED] = None
    """Share of the recorded episodes that neither train nor evaluate the policy, selected with the same seed before
    `heldOut`: for one last estimate of the policy that was chosen among many. Default: none."""
    input: Annotated[list[Location], Field(min_length=1, max_length=16)] | None = None
    """Recorded episodes other than those of `spec.input`: files, folders or globs, by path or URI."""
    interval: Positive | None = None
    """Training iterations between evaluations. Default: once, at the end."""
    estimates: Annotated[list[EstimateName], Field(max_length=7)] = []
    """Estimates of the policy's discounted return: by importance sampling `is`, `wis`, `pdis` and `pdwis`, by a model
    of its values `dm`, by both `dr` and `wdr`. The best checkpoint, and `stop.estimatedReturn`, follow the first one.
    Default: none; the loss and the signals are still computed."""
    explore: bool = False
    """Evaluate the policy as it samples its actions. Otherwise it takes the most likely ones; continuous actions
    then allow only `dm`."""
    gamma: Annotated[float, Field(ge=0, le=1)] | None = None
    """Discount of the estimates. Default: the algorithm's, else 0.99."""
    clip: Annotated[float, Field(ge=1)] | None = None
    """Upper bound on each step's importance ratio. Default: none."""
    model_updates: Positive = 10_000
    """Updates of the model that `dm`, `dr` and `wdr` fit in each evaluation."""


class EvaluationSpec(Model):
    """Seeded and vectorised; the weights that are evaluated are those reported and kept as best. All but `offline` is
    of episodes played in `spec.environment`.
    """

    rules: ClassVar = (
        Rule(
            "!has(self.duration) || type(self.duration) == int || "
            "(has(self.parallelToTraining) && self.parallelToTraining)",
            "duration Auto needs parallelToTraining",
            field_path=".duration",
        ),
        Rule(
            "!has(self.customFunction) || !(has(self.parallelToTraining) && self.parallelToTraining)",
            "customFunction excludes parallelToTraining",
            field_path=".customFunction",
        ),
    )

    interval: Positive | None = None
    """Training iterations between evaluations. Default: once, at the end."""
    duration: EvaluationDuration = 10
    """Length of one evaluation; `Auto` (with parallelToTraining) as long as the training iteration takes."""
    duration_unit: Annotated[Literal["episodes", "timesteps"], YamlWords("Episodes", "Timesteps")] = (
        "episodes"
    )
    """What `duration` counts."""
    runners: Annotated[NonNegative, OPERATIONAL] = 0
    """Evaluation runners; 0 evaluates in the driver's process."""
    envs_per_runner: Positive | None = None
    """Environments that a runner steps at once. Default: min(duration, 8)."""
    parallel_to_training: bool = False
    """Evaluate while training continues; the result is used one iteration later."""
    explore: bool = False
    """Sample actions instead of taking the mode."""
    reference_returns: ReferenceReturns | None = None
    """Returns of a random policy and of an expert: results have a `normalised_score` then, 0 and 100 for these."""
    sample_timeout_seconds: Annotated[float, Field(gt=0), OPERATIONAL] = 120.0
    """Timeout of an evaluation, in seconds."""
    custom_function: ClassPath | None = None
    """A custom evaluation, "package.module:function", called with (policy, environment, seed), or as RLlib does with
    (algorithm, eval_workers), in the driver's process; it returns metrics by name."""
    offline: OfflineEvaluationSpec | None = None
    """Evaluation by recorded episodes, which needs no environment. Default: none."""

    @model_validator(mode="after")
    def _check_auto(self) -> Self:
        if self.duration == "auto" and not self.parallel_to_training:
            raise ValueError("has duration Auto without parallelToTraining: true")
        if self.custom_function is not None and self.parallel_to_training:
            raise ValueError(
                "has customFunction with parallelToTraining; custom functions run in the driver only"
            )
        return self
