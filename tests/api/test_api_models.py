"""The resources as pydantic models: defaults, strict types, choices, and the messages for invalid values."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from hindcast.api import OfflineRecording, OfflineTraining, parse_bytes
from hindcast.api.cluster import ClusterSpec, PodResources
from hindcast.api.environment import EnvironmentSpec, NamedCall
from hindcast.api.evaluation import EvaluationSpec
from hindcast.api.input import InputSource
from hindcast.api.metadata import Metadata
from hindcast.api.model import ModelSpec
from hindcast.api.recording import CheckpointPolicy, Duration, OutputSpec
from hindcast.api.sentences import models_in
from hindcast.api.training import LearnersSpec, OfflineTrainingSpec, StopSpec

TRAINING = {"algorithm": "BC", "input": [{"path": "data"}], "stop": {"epochs": 1}}


def error_messages(error: pytest.ExceptionInfo[ValidationError]) -> str:
    return "\n".join(str(details["msg"]) for details in error.value.errors())


def test_minimal_training_has_the_documented_defaults() -> None:
    spec = OfflineTrainingSpec.model_validate(TRAINING)
    assert spec.model.fcnet_hiddens is None
    assert spec.pipeline.window_steps == 2**20
    assert parse_bytes(spec.pipeline.window_bytes) == 2**30
    assert spec.pipeline.data_workers.interval == (2, 2)
    assert spec.pipeline.dataset_num_iters_per_learner is None
    assert (spec.checkpoint.path, spec.checkpoint.every, spec.checkpoint.keep) == ("runs", 10, 3)
    assert (spec.evaluation, spec.environment, spec.seed, spec.revision) == (None, None, 0, 1)
    assert spec.run_policy.suspend_grace_seconds == 120


def test_fields_have_the_same_meaning_in_both_spellings() -> None:
    camel_case = EvaluationSpec.model_validate({"durationUnit": "Timesteps", "parallelToTraining": True})
    snake_case = EvaluationSpec.model_validate({"duration_unit": "timesteps", "parallel_to_training": True})
    assert camel_case == snake_case
    assert camel_case.model_dump(by_alias=True)["durationUnit"] == "Timesteps"


def test_specs_are_immutable() -> None:
    spec = StopSpec(epochs=1.0)
    with pytest.raises(ValidationError, match="frozen"):
        spec.epochs = 2.0


@pytest.mark.parametrize("value", ["3", 2.5, True, None])
def test_value_is_not_coerced_to_an_integer(value: object) -> None:
    with pytest.raises(ValidationError):
        Duration.model_validate({"timesteps": value})


def test_integer_with_exponent_is_read() -> None:
    duration = Duration.model_validate({"timesteps": 1e6})
    assert duration.timesteps == 1_000_000
    assert isinstance(duration.timesteps, int)


@pytest.mark.parametrize(
    ("model", "data", "expected"),
    [
        (ModelSpec, {"convFilters": [[16, 8]]}, "[16, 8], expected [channels, kernel, stride]"),
        (Metadata, {"name": "Cart_Pole"}, "is 'Cart_Pole', expected at most 36 lower-case letters"),
        (Metadata, {"name": "a" * 37}, "expected at most 36"),
        (Metadata, {"name": "9lives"}, "beginning with a letter"),
        (OutputSpec, {"path": "x", "maxFileSize": "3 bananas"}, "is '3 bananas', expected a size such as"),
        (OutputSpec, {"path": "x", "maxFileSize": True}, "expected a size"),
    ],
)
def test_invalid_section_is_refused_with_a_sentence(
    model: type[BaseModel], data: dict[str, object], expected: str
) -> None:
    with pytest.raises(ValidationError) as error:
        model.model_validate(data)
    assert expected in error_messages(error)


@pytest.mark.parametrize(
    "path",
    [
        "s3://key:secret@bucket/data",
        "s3://key@bucket/data",
        "s3://anonymous:secret@bucket/data",
        "https://anonymous@host/data",
        "s3://anonymous@bucket/data?secret_key=abc",
        "s3://bucket/data?secret_key=abc",
        "abfss://user:password@account.dfs.core.windows.net/x",
        "https://account.blob.core.windows.net/c?sv=1&SIG=abc",
    ],
)
def test_credentials_in_uri_are_refused_and_not_repeated(path: str) -> None:
    with pytest.raises(ValidationError) as error:
        CheckpointPolicy.model_validate({"path": path})
    assert "contains credentials" in error_messages(error)
    assert "secret" not in error_messages(error).replace("Secret", "")


def test_uri_with_one_slash_is_refused() -> None:
    with pytest.raises(ValidationError) as error:
        CheckpointPolicy.model_validate({"path": "hdfs:/archive"})
    assert "is neither a URI nor a plain path: write hdfs://host:port/archive" in error_messages(error)


@pytest.mark.parametrize(
    "path",
    [
        "s3://bucket/data",
        "s3://anonymous@bucket/data",
        "gs://anonymous@bucket",
        "abfss://container@account.dfs.core.windows.net/x",
        "/data/@home",
        "./hdfs:/archive",
        "runs",
        "a?b=c",
    ],
)
def test_path_without_credentials_is_kept(path: str) -> None:
    assert CheckpointPolicy.model_validate({"path": path}).path == path


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128Mi", 128 * 2**20),
        ("1Gi", 2**30),
        ("500M", 500_000_000),
        ("7", 7),
        (7, 7),
        ("0.5Ki", 512),
        ("0.1", 1),
    ],
)
def test_parse_bytes_returns_bytes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1 Gi", "1GB", "Gi", "1e3"])
def test_parse_bytes_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_bytes(text)


def test_wrapper_is_a_name_or_a_name_with_arguments() -> None:
    spec = EnvironmentSpec.model_validate(
        {"id": "CartPole-v1", "wrappers": ["A", {"name": "b:C", "kwargs": {"k": 1}}]}
    )
    assert spec.wrappers == [NamedCall(name="A"), NamedCall(name="b:C", kwargs={"k": 1})]


def test_nested_spaces_write_infinite_bounds_as_text() -> None:
    space = {
        "type": "Dict",
        "spaces": {
            "a": {"type": "Box", "low": float("-inf"), "high": [1, "inf"], "shape": [2]},
            "b": {"type": "Tuple", "spaces": [{"type": "Discrete", "n": 3}]},
        },
    }
    spec = OfflineTrainingSpec.model_validate(TRAINING | {"observationSpace": space})
    assert spec.model_dump(by_alias=True, exclude_defaults=True)["observationSpace"] == {
        "type": "Dict",
        "spaces": {
            "a": {"type": "Box", "low": "-inf", "high": [1.0, "inf"], "shape": [2]},
            "b": {"type": "Tuple", "spaces": [{"type": "Discrete", "n": 3}]},
        },
    }


def test_metadata_drops_fields_of_the_api_server() -> None:
    metadata = Metadata.model_validate({"name": "a", "uid": "x", "generation": 3, "labels": {"k": "v"}})
    assert metadata == Metadata(name="a", labels={"k": "v"})
    with pytest.raises(ValidationError):
        Metadata.model_validate({"name": "a", "lables": {}})


def find_all_models() -> set[type[BaseModel]]:
    models: set[type[BaseModel]] = set()
    pending: list[type[BaseModel]] = [OfflineRecording, OfflineTraining]
    while pending:
        model = pending.pop()
        if model not in models:
            models.add(model)
            for field in model.model_fields.values():
                pending += nested_models(field.annotation)
    return models


def nested_models(annotation: object) -> list[type[BaseModel]]:
    arguments = getattr(annotation, "__args__", ())
    return models_in(annotation) + [model for part in arguments for model in nested_models(part)]


def test_every_field_has_a_description() -> None:
    assert len(find_all_models()) > 40
    fields_without_description = [
        f"{model.__name__}.{name}"
        for model in find_all_models()
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert fields_without_description == []


class TestInitialisers:
    @pytest.mark.parametrize(
        "initializer", ["xavier_uniform", "xavier_uniform_", {"name": "xavier_uniform", "kwargs": {}}]
    )
    def test_name_may_end_with_underscore(self, initializer: Any) -> None:
        model = ModelSpec.model_validate({"fcnetKernelInitializer": initializer})
        assert model.fcnet_kernel_initializer == NamedCall(name="xavier_uniform")

    @pytest.mark.parametrize(
        ("field", "initializer", "message"),
        [
            ("fcnetKernelInitializer", "glorot", "is 'glorot', which is not an initialiser"),
            (
                "fcnetBiasInitializer",
                "orthogonal",
                "only initialises matrices; for a bias use one of constant, normal",
            ),
            (
                "convKernelInitializer",
                {"name": "zeros", "kwargs": {"val": 1}},
                "zeros does not accept; it accepts no arguments",
            ),
            ("convBiasInitializer", "constant", "is constant without a val"),
            (
                "headFcnetKernelInitializer",
                {"name": "orthogonal", "kwargs": {"gain": "2"}},
                "has gain '2', expected a number",
            ),
            (
                "recurrentKernelInitializer",
                {"name": "kaiming_normal", "kwargs": {"mode": 1}},
                "has mode 1, expected text",
            ),
        ],
    )
    def test_invalid_initializer_is_refused_with_a_sentence(
        self, field: str, initializer: Any, message: str
    ) -> None:
        with pytest.raises(ValidationError, match=message):
            ModelSpec.model_validate({field: initializer})


@pytest.mark.parametrize(
    ("quantity", "cpus"), [(2, 2.0), (0.5, 0.5), ("500m", 0.5), ("2", 2.0), ("0.25", 0.25)]
)
def test_cpus_accept_kubernetes_quantities(quantity: object, cpus: float) -> None:
    assert LearnersSpec.model_validate({"cpus": quantity}).cpus == cpus
    assert PodResources.model_validate({"cpu": quantity}).cpu == cpus


@pytest.mark.parametrize("value", [0, "0m", -1, "0.5 cores", "1Gi", True, [1], float("nan")])
def test_cpus_refuse_other_values(value: object) -> None:
    with pytest.raises(ValidationError, match=r"expected CPUs above 0 such as 2, 0\.5 or 500m"):
        LearnersSpec.model_validate({"cpus": value})


def test_list_map_refuses_a_name_twice() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert [entry.name for entry in ClusterSpec.model_validate({"env": env}).env] == ["A", "B"]
    with pytest.raises(ValidationError, match="has 2 entries with name 'A'; keep one"):
        ClusterSpec.model_validate({"env": [*env, {"name": "A", "value": "3"}]})


def test_list_set_refuses_an_entry_twice() -> None:
    with pytest.raises(ValidationError, match="has 'obs' 2 times; keep one"):
        InputSource.model_validate({"path": "data", "columns": ["obs", "actions", "obs"]})
