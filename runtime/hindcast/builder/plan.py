"""What a config builds: a training, a recording, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hindcast.api import ModelSpec, OfflineRecording, OfflineTraining
from hindcast.api.evaluation import EvaluationSpec
from hindcast.api.recording import RunnersSpec
from hindcast.builder.resources import (
    algorithm_config,
    learns_online,
    model_section,
    plays,
    recording,
    section,
    training,
)
from hindcast.builder.values import plain

_POLICY = "_hindcast/policy/module"
"""Inside the dataset, whose own location is not part of its identity."""


@dataclass(frozen=True)
class Plan:
    """What to build.

    Attributes:
        training: trains the policy; of an algorithm that learns online, from samples. None without data.
        recording: what `evaluate()` adds to a dataset; None without an output.
        online: the algorithm learns in its environment.
        width: environments that it samples from side by side.
    """

    training: OfflineTraining | None
    recording: OfflineRecording | None
    online: bool
    algorithm: str
    width: int
    config: Mapping[str, Any]
    model: ModelSpec
    initial_checkpoint: str | None


def plan_of(algorithm: str, options: Mapping[str, Any], name: str) -> Plan:
    """What a config's options build.

    Raises:
        SpecError: one line per problem.
    """
    online = learns_online(algorithm)
    recorded = None
    if options.get("output"):
        recorded = recording(algorithm, options, name, {"checkpoint": {"path": _POLICY}}, None)
    trained, width = None, options.get("num_envs_per_env_runner")
    if plays(algorithm) or options.get("input_") or recorded is None:
        trained = _evaluated(training(algorithm, options, name, None), plain(width))
    return Plan(
        training=trained,
        recording=recorded,
        online=online,
        algorithm=algorithm,
        width=RunnersSpec().envs_per_runner if width is None else width,
        config=algorithm_config(algorithm, options),
        model=section(ModelSpec, model_section(options), ("spec", "model")),
        initial_checkpoint=options.get("initial_checkpoint"),
    )


def _evaluated(resource: OfflineTraining, width: Any) -> OfflineTraining:
    """Adds an evaluation section if there is an environment, so that `evaluate()` can be called."""
    spec = resource.spec
    if spec.environment is None:
        return resource
    if spec.evaluation is not None:
        return resource
    evaluation = section(EvaluationSpec, {"envsPerRunner": width}, ("spec", "evaluation"))
    return resource.model_copy(update={"spec": spec.model_copy(update={"evaluation": evaluation})})
