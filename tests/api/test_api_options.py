"""Options are checked with JSON schemas only, as on a machine without torch."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from hindcast.api import checks, options
from hindcast.api.checks import check_algorithm
from hindcast.api.option_types import Schedule
from hindcast.api.options import build_model, non_default_options


class Options(BaseModel):
    """Options of a stub algorithm, one of each type."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")

    lr: Schedule = 1e-4
    bc_iters: int = Field(default=0, ge=0)
    expectile: float = Field(default=0.8, gt=0, lt=1)
    clip_by: Literal["norm", "value"] | None = "norm"
    lambda_: float = Field(default=1.0, alias="lambda")
    size: int | None = None
    twin: bool = True


STUB_SCHEMAS: dict[str, dict[str, Any]] = {
    "Stub": Options.model_json_schema() | {"x-kinds": ["OfflineTraining"]},
    "Recurrent": {
        "properties": {
            "lr": {"type": "number", "default": 1e-3},
            "trainBatchSizePerLearner": {"type": "integer", "default": 32},
        },
        "x-kinds": ["OfflineTraining", "OfflineRecording"],
        "x-recurrent": True,
    },
}


@pytest.fixture
def _stub_schemas(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (options, checks):
        monkeypatch.setattr(module, "schemas", lambda: STUB_SCHEMAS)
    for function in (options.options_model, checks.all_option_rules):
        function.cache_clear()
    yield
    for function in (options.options_model, checks.all_option_rules):
        function.cache_clear()


def list_problems(algorithm: str, config: object, kind: str = "OfflineTraining") -> list[str]:
    spec = {"algorithm": algorithm, "config": config}
    return [str(problem) for problem in check_algorithm(kind, spec, None, ("spec",))]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"lr": 1},
        {"lr": [[0, 1e-3], [100, 1e-4]]},
        {"bcIters": 1e3, "lambda": 0.5, "clipBy": None, "size": 2},
    ],
)
def test_rebuilt_model_accepts_what_the_options_accept(config: dict[str, Any]) -> None:
    Options.model_validate(config)
    build_model("Stub", STUB_SCHEMAS["Stub"]).model_validate(config)


@pytest.mark.parametrize(
    "config",
    [
        {"lr": "fast"},
        {"lr": None},
        {"bcIters": -1},
        {"bcIters": 0.5},
        {"expectile": 1.0},
        {"lr": [[1, 1e-3]]},
        {"clipBy": "A"},
        {"size": 0.5},
        {"twin": "maybe"},
        {"bc_iters": 1},
    ],
)
def test_rebuilt_model_refuses_what_the_options_refuse(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Options.model_validate(config)
    with pytest.raises(ValidationError):
        build_model("Stub", STUB_SCHEMAS["Stub"]).model_validate(config)


def test_rebuilt_model_has_the_defaults() -> None:
    assert build_model("Stub", STUB_SCHEMAS["Stub"])().model_dump() == Options().model_dump(by_alias=True)


@pytest.mark.usefixtures("_stub_schemas")
def test_invalid_options_are_refused_in_sentences() -> None:
    assert list_problems("Stub", {"bcIters": 3}) == []
    assert list_problems("Recurrent", {"bcIters": 3}) == [
        "spec.config.bcIters does not apply to Recurrent; it is a field of Stub"
    ]
    assert list_problems("Stub", {"bcIter": 3}) == [
        "spec.config.bcIter is not a field; did you mean 'bcIters'?"
    ]
    assert list_problems("Stub", {"size": "a", "sizes": 1}) == [
        "spec.config.size is 'a' (text), expected a whole number or nothing",
        "spec.config.sizes is not a field; did you mean 'size'?",
    ]
    assert list_problems("Stub", {"expectile": 2, "twin": 1}) == [
        "spec.config.expectile is 2, expected less than 1",
        "spec.config.twin is 1, expected true or false",
    ]
    assert list_problems("Stup", {}) == [
        "spec.algorithm is 'Stup', which is not an algorithm; did you mean 'Stub'?"
    ]
    assert list_problems("Stub", {}, "OfflineRecording") == [
        "spec.algorithm is Stub, which an OfflineRecording cannot use; it can use Recurrent"
    ]
    assert list_problems("my.mod:Algorithm", {"anything": 1}) == []


@pytest.mark.usefixtures("_stub_schemas")
def test_non_default_options_leave_out_defaults() -> None:
    config = {"lr": 1, "bcIters": 0, "clipBy": "norm", "size": 1e1}
    assert non_default_options("Stub", config) == {"lr": 1.0, "size": 10}


@pytest.mark.parametrize(
    ("algorithm", "config", "problem"),
    [
        ("BC", {"lr": [[5, 1.0]]}, "lr: the schedule starts at timestep 5, expected 0"),
        ("BC", {"lr": []}, "lr has 0 entries, expected at least 1"),
        ("DQN", {"epsilon": 1.5}, "epsilon is 1.5, expected at most 1 or a list"),
        (
            "DQN",
            {"epsilon": [[0, 1.5]]},
            "epsilon: the schedule has the value 1.5, expected a probability of at most 1",
        ),
    ],
)
def test_invalid_schedule_is_refused(algorithm: str, config: dict[str, Any], problem: str) -> None:
    assert list_problems(algorithm, config)[0].startswith(f"spec.config.{problem}")


def test_shipped_schemas_name_their_kinds() -> None:
    assert options.algorithms("OfflineTraining")
    assert options.algorithms("OfflineRecording")
    for name in options.schemas():
        assert options.options_model(name)() is not None
