"""Evaluation of the policy while it is trained: in its environment, by recorded episodes, or both."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from hindcast.api.base import OPERATIONAL, ClassPath, Model, NonNegative, Positive, Rule
from hindcast.api.offline_evaluation import OfflineEvaluationSpec

EvaluationDuration = Annotated[
    Positive | Literal["auto"],
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 16, "minimum": 1, "pattern": "^auto$"}),
]


class ReferenceReturns(Model):
    """Mean returns that a score is normalised by."""

    rules: ClassVar = (Rule("self.random < self.expert", "random must be below expert", at=".random"),)

    random: float
    """Of a policy that acts at random."""
    expert: float
    """Of an expert."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.random >= self.expert:
            raise ValueError(f"has random {self.random:g}, which must be below expert {self.expert:g}")
        return self


class EvaluationSpec(Model):
    """Seeded and vectorised; the weights that are evaluated are those reported and kept as best. All but `offline` is
    of episodes played in `spec.environment`.
    """

    rules: ClassVar = (
        Rule(
            "!has(self.duration) || type(self.duration) == int || "
            "(has(self.parallelToTraining) && self.parallelToTraining)",
            "duration auto needs parallelToTraining",
            at=".duration",
        ),
        Rule(
            "!has(self.customFunction) || !(has(self.parallelToTraining) && self.parallelToTraining)",
            "customFunction excludes parallelToTraining",
            at=".customFunction",
        ),
    )

    interval: Positive | None = None
    """Training iterations between evaluations. Default: once, at the end."""
    duration: EvaluationDuration = 10
    """Length of one evaluation; `auto` (with parallelToTraining) as long as the training iteration takes."""
    duration_unit: Literal["episodes", "timesteps"] = "episodes"
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
            raise ValueError("has duration auto without parallelToTraining: true")
        if self.custom_function is not None and self.parallel_to_training:
            raise ValueError(
                "has customFunction with parallelToTraining; custom functions run in the driver only"
            )
        return self
