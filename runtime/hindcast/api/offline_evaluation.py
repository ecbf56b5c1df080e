"""Evaluation by recorded episodes that are never trained on, without an environment."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hindcast.api.base import FIXED, Location, Model, NonNegative, Positive

EstimateName = Literal["is", "wis", "pdis", "pdwis", "dm", "dr", "wdr"]


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
