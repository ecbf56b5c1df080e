"""Resources reach the API server as JSON: values that JSON or Kubernetes refuse are refused when loading, too."""

import json
import math
from typing import Any

import pytest

from hindcast.api import spec_hash, validate_resource
from hindcast.api.crd import custom_resource_definitions
from hindcast.api.filter_term import parse_filter
from hindcast.api.options import schemas
from hindcast.api.status import ProgressStatus
from hindcast.errors import SpecError
from resource_examples import make_document

TRAINING_SPEC: dict[str, Any] = {"algorithm": "BC", "input": [{"path": "data"}], "stop": {"epochs": 3}}


def make_training(metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    document = make_document("OfflineTraining", TRAINING_SPEC | spec, "clone")
    return document | {"metadata": document["metadata"] | (metadata or {})}


def refusal_message(resource: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as error:
        validate_resource(resource)
    return str(error.value)


def test_resource_with_last_applied_annotation_is_read() -> None:
    last_applied = json.dumps(make_training(model={"fcnetHiddens": [256] * 32}, observationSpace=None)) * 20
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": last_applied}
    resource = validate_resource(make_training({"annotations": annotations}))
    assert resource.metadata.annotations == annotations


def test_many_labels_are_read() -> None:
    labels = {f"example.com/label-{i}": str(i) for i in range(200)} | {"empty": ""}
    assert validate_resource(make_training({"labels": labels})).metadata.labels == labels


@pytest.mark.parametrize("label", [{"Example.com/x": "a"}, {"a b": "c"}, {"a/b/c": "d"}, {"x" * 64: "e"}])
def test_invalid_label_key_is_refused(label: dict[str, str]) -> None:
    (name,) = label
    assert f"has the label '{name}'" in refusal_message(make_training({"labels": label}))
    assert f"has the label '{name}'" in refusal_message(make_training(cluster={"nodeSelector": label}))


@pytest.mark.parametrize("value", ["a b", "-a", "a/b", "x" * 64])
def test_invalid_label_value_is_refused(value: str) -> None:
    assert refusal_message(make_training({"labels": {"team": value}})).startswith("metadata.labels.team is")
    assert "spec.cluster.scheduling.labels.team is" in refusal_message(
        make_training(cluster={"scheduling": {"labels": {"team": value}}})
    )


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        (make_training({"name": "clone\n"}), "metadata.name"),
        (make_training({"namespace": "default\n"}), "metadata.namespace"),
        (make_training(algorithm="my.package:Algorithm\n"), "spec.algorithm"),
        (make_training(pipeline={"preLearner": "my.package:PreLearner\n"}), "spec.pipeline.preLearner"),
        (make_training(pipeline={"windowBytes": "1Gi\n"}), "spec.pipeline.windowBytes"),
    ],
)
def test_text_that_ends_with_a_newline_is_refused(resource: dict[str, Any], path: str) -> None:
    assert refusal_message(resource).startswith(f"{path} is ")


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 2**64, -(2**63) - 1])
def test_number_that_json_may_not_keep_is_refused(number: float) -> None:
    """Regression: integers beyond 64 bits ended in a traceback when data were opened."""
    environment = {"id": "CartPole-v1", "kwargs": {"bounds": [{"high": number}]}}
    assert "spec.environment.kwargs contains" in refusal_message(make_training(environment=environment))
    if isinstance(number, float):
        assert "spec.stop.epochs" in refusal_message(make_training(stop={"epochs": number}))
        assert "spec.config.lr" in refusal_message(make_training(config={"lr": number}))
    assert "spec.customConfig contains" in refusal_message(
        make_training(algorithm="a:B", customConfig={"x": number})
    )
    inputs = [{"path": "data", "filter": [{"column": "x", "op": "<", "value": number}]}]
    assert "spec.input[0].filter[0].value contains" in refusal_message(make_training(input=inputs))
    with pytest.raises(SpecError, match=r"the comparison 'x < .*' contains .*, expected"):
        parse_filter(f"x < {json.dumps(number)}")


def test_space_with_infinite_bounds_is_hashed() -> None:
    space = {"type": "Box", "low": "-inf", "high": math.inf, "shape": [4]}
    assert len(spec_hash(validate_resource(make_training(observationSpace=space)))) == 16


@pytest.mark.parametrize("number", [2**63, 1e30, -(2**63)])
def test_seed_outside_0_to_2_63_is_refused(number: float) -> None:
    assert "spec.seed is" in refusal_message(make_training(seed=number))


def test_largest_seed_is_accepted() -> None:
    assert validate_resource(make_training(seed=2**63 - 1)).spec.seed == 2**63 - 1


@pytest.mark.parametrize("size", [-1, "-1Gi", "1" * 33, "1Zi", 1.5, True])
def test_invalid_size_is_refused(size: object) -> None:
    assert "expected a size such as 512Mi" in refusal_message(make_training(learners={"memory": size}))


def test_progress_leaves_out_metrics_that_are_not_finite() -> None:
    metrics = {"loss": math.nan, "episodeReturnMean": 450.0, "timesteps": 3}
    progress = ProgressStatus.model_validate({"metrics": metrics})
    assert progress.metrics == {"episodeReturnMean": 450.0, "timesteps": 3}


def test_schema_of_run_policy_has_no_defaults() -> None:
    """Otherwise the API server would fill them in, and the operator could not tell what the user left out."""
    for definition in custom_resource_definitions(schemas()).values():
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        policy = schema["properties"]["spec"]["properties"]["runPolicy"]
        assert "backoffLimit" in policy["properties"]
        assert "default" not in policy
        assert not [name for name, part in policy["properties"].items() if "default" in part]


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, "is 0, expected at least 1 or Auto"),
        (2.5, "is 2.5, expected a whole number or Auto"),
        (True, "is true, expected a whole number or Auto"),
        ("always", "is 'always' (text), expected a whole number or Auto"),
        (1e30, "spec.evaluation.duration"),
    ],
)
def test_evaluation_duration_must_be_a_count_or_auto(duration: object, expected: str) -> None:
    message = refusal_message(
        make_training(environment={"id": "CartPole-v1"}, evaluation={"duration": duration})
    )
    assert expected in message
    assert message.count("\n") == 0
