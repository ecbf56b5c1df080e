"""Every bound that an algorithm's schema states holds: for the resource and for the Python builder, in one sentence."""

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

INTEGERS = {"minimum": -1, "maximum": 1, "exclusiveMinimum": 0, "exclusiveMaximum": 0}
"""How far the nearest whole number outside a bound is from it."""
NUMBERS = {"minimum": -math.inf, "maximum": math.inf}
"""Where the nearest number outside a bound lies; that of an exclusive one is itself outside."""


def outside(options: Schema, part: Schema) -> Iterator[Any]:
    """The nearest values that an option does not take."""
    for kind in part.get("anyOf", [part]):
        yield from beyond(kind)
    if "x-type" in part:
        number, points = part["anyOf"]
        yield [[0, 0.5]] * (points["maxItems"] + 1)
        yield from ([[0, value]] for value in beyond(number))
        yield [[1, 0.5]]
    default = {name: each["default"] for name, each in options["properties"].items()}
    if "x-at-most" in part:
        yield default[part["x-at-most"]] + 1


def beyond(kind: Schema) -> Iterator[Any]:
    if "enum" in kind:
        yield "nonsense"
    if "minItems" in kind:
        yield [[0, 0.5]] * (kind["minItems"] - 1)
    for bound in sorted(INTEGERS.keys() & kind.keys()):
        limit = kind[bound]
        if kind["type"] == "integer":
            yield limit + INTEGERS[bound]
        else:
            yield math.nextafter(limit, NUMBERS[bound]) if bound in NUMBERS else float(limit)


CASES = [
    pytest.param(algorithm, {option: value}, id=f"{algorithm} {option} {value!s:.24}")
    for algorithm, options in schemas().items()
    for option, part in options["properties"].items()
    for value in outside(options, part)
] + [
    pytest.param("DecisionTransformer", {"embedSize": 129, "numHeads": 2}, id="DecisionTransformer numHeads")
]


def of_resource(algorithm: str, config: Mapping[str, Any]) -> None:
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


def of_builder(algorithm: str, config: Mapping[str, Any]) -> None:
    builder = AlgorithmConfig(algorithm).environment("CartPole-v1")
    if "OfflineTraining" in schemas()[algorithm]["x-kinds"]:
        builder = builder.offline_data(input_="data")
    builder.training(**{to_option_name(option): value for option, value in config.items()}).validate()


@pytest.mark.parametrize(("algorithm", "config"), CASES)
def test_value_beyond_a_bound_raises_one_sentence(algorithm: str, config: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as by_resource:
        of_resource(algorithm, config)
    with pytest.raises(SpecError) as by_builder:
        of_builder(algorithm, config)
    option = next(iter(config))
    assert re.fullmatch(rf"spec\.(policy\.train\.)?config\.{option}\W.*", str(by_resource.value))
    assert re.fullmatch(rf"{to_option_name(option)}\W.*", str(by_builder.value))
