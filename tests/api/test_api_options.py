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
    options.options_model.cache_clear()
    yield
    options.options_model.cache_clear()


def list_problems(
    algorithm: str, config: object, kind: str = "OfflineTraining", model: object = None
) -> list[str]:
    spec = {"algorithm": algorithm, "config": config, "model": model}
    return [str(problem) for problem in check_algorithm(kind, spec, ("spec",))]


@pytest.mark.usefixtures("_stub_schemas")
def test_recurrent_model_is_refused_unless_the_algorithm_learns_from_sequences() -> None:
    refusal = "spec.model.recurrent is 'GRU', but Stub learns from single timesteps and cannot train a recurrent policy"
    assert list_problems("Stub", {}, model={"recurrent": "GRU"}) == [refusal]
    assert list_problems("Recurrent", {}, model={"recurrent": "GRU"}) == []
    assert (
        list_problems("Stub", {}, model={"recurrent": "None"})
        == list_problems("Stub", {}, model="no mapping")
        == []
    )


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


def test_shipped_schemas_name_their_kinds() -> None:
    assert options.algorithms("OfflineTraining")
    assert options.algorithms("OfflineRecording")
    for name in options.schemas():
        assert options.options_model(name)() is not None
