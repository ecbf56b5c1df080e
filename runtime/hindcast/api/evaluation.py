"""Evaluation of the policy in its environment while it is trained."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from hindcast.api.base import OPERATIONAL, ClassPath, Model, NonNegative, Positive, Rule

EvaluationDuration = Annotated[
    Positive | Literal["auto"],
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 16, "minimum": 1, "pattern": "^auto$"}),
]


class EvaluationSpec(Model):
    """Seeded and vectorised; the weights that are evaluated are those reported and kept as best."""

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
    """Evaluate while training goes on; the result is used one iteration later."""
    explore: bool = False
    """Sample actions rather than take the mode."""
    sample_timeout_seconds: Annotated[float, Field(gt=0), OPERATIONAL] = 120.0
    """Seconds after which an evaluation is given up."""
    custom_function: ClassPath | None = None
    """One's own evaluation, "package.module:function", called with (policy, environment, seed) in the driver's
    process; it returns numbers by name."""

    @model_validator(mode="after")
    def _check_auto(self) -> Self:
        if self.duration == "auto" and not self.parallel_to_training:
            raise ValueError("has duration auto without parallelToTraining: true")
        if self.custom_function is not None and self.parallel_to_training:
            raise ValueError("has customFunction with parallelToTraining; it plays in the driver's process")
        return self
