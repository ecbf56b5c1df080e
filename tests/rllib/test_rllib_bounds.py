"""A value outside a bound of an algorithm's schema raises one sentence, in a resource and in the Python builder."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hindcast import AlgorithmConfig
from hindcast.api import validate_resource
from hindcast.api.options import schemas
from hindcast.errors import SpecError
from hindcast.rllib.builder.options import to_option_name

Schema = Mapping[str, Any]

INTEGER_STEPS = {"minimum": -1, "maximum": 1, "exclusiveMinimum": 0, "exclusiveMaximum": 0}
"""Bound -> difference from its limit to the nearest integer outside."""
FLOAT_DIRECTIONS = {"minimum": -math.inf, "maximum": math.inf}
"""Inclusive bound -> direction of the nearest float outside; the limit of an exclusive bound is itself outside."""


def values_outside_option(options: Schema, option_schema: Schema) -> Iterator[Any]:
    """Yield values that an option refuses: the nearest number outside each bound (also one that another option's
    default gives), an unknown word, and invalid schedules."""
    for type_schema in option_schema.get("anyOf", [option_schema]):
        yield from values_outside_type(type_schema)
    if "x-type" in option_schema:
        # A schedule: too many points, a value outside the bounds of the number, and a first timestep other than 0.
        number, points = option_schema["anyOf"]
        yield [[0, 0.5]] * (points["maxItems"] + 1)
        yield from ([[0, value]] for value in values_outside_type(number))
        yield [[1, 0.5]]
    defaults = {name: option["default"] for name, option in options["properties"].items()}
    if "x-at-most" in option_schema:
        yield defaults[option_schema["x-at-most"]] + 1


def values_outside_type(type_schema: Schema) -> Iterator[Any]:
    if "enum" in type_schema:
        yield "nonsense"
    if "minItems" in type_schema:
        yield [[0, 0.5]] * (type_schema["minItems"] - 1)
    for bound in sorted(INTEGER_STEPS.keys() & type_schema.keys()):
        limit = type_schema[bound]
        if type_schema["type"] == "integer":
            yield limit + INTEGER_STEPS[bound]
        elif bound in FLOAT_DIRECTIONS:
            yield math.nextafter(limit, FLOAT_DIRECTIONS[bound])
        else:
            yield float(limit)


CASES = [
    pytest.param(algorithm, {option: value}, id=f"{algorithm} {option} {value!s:.24}")
    for algorithm, options in schemas().items()
    for option, schema in options["properties"].items()
    for value in values_outside_option(options, schema)
] + [
    pytest.param(
        "DecisionTransformer",
        {"embedSize": 129, "numHeads": 2},
        id="DecisionTransformer embedSize not divisible by numHeads",
    )
]


def validate_resource_with(algorithm: str, config: Mapping[str, Any]) -> None:
    spec: dict[str, Any] = {"algorithm": algorithm, "config": config}
    if "OfflineTraining" in schemas()[algorithm]["x-kinds"]:
        kind, spec = "OfflineTraining", {**spec, "input": [{"path": "data"}], "stop": {"updates": 1}}
    else:
        kind, policy = "OfflineRecording", {"train": {**spec, "stop": {"iterations": 1}}}
        spec = {"policy": policy, "duration": {"episodes": 1}, "output": {"path": "data"}}
    spec["environment"] = {"id": "CartPole-v1"}
    validate_resource(
        {"apiVersion": "hindcast.dev/v1alpha1", "kind": kind, "metadata": {"name": "bounds"}, "spec": spec}
    )


def validate_builder_with(algorithm: str, config: Mapping[str, Any]) -> None:
    builder = AlgorithmConfig(algorithm).environment("CartPole-v1")
    if "OfflineTraining" in schemas()[algorithm]["x-kinds"]:
        builder = builder.offline_data(input_="data")
    builder.training(**{to_option_name(option): value for option, value in config.items()}).validate()


@pytest.mark.parametrize(("algorithm", "config"), CASES)
def test_value_beyond_a_bound_raises_one_sentence(algorithm: str, config: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as resource_error:
        validate_resource_with(algorithm, config)
    with pytest.raises(SpecError) as builder_error:
        validate_builder_with(algorithm, config)
    option = next(iter(config))
    assert re.fullmatch(rf"spec\.(policy\.train\.)?config\.{option}\W.*", str(resource_error.value))
    assert re.fullmatch(rf"{to_option_name(option)}\W.*", str(builder_error.value))
