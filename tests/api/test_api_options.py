"""Options checked from JSON schemas alone, as a machine without torch does it."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from hindcast.api import checks, options
from hindcast.api.checks import check_algorithm
from hindcast.api.option_types import Schedule
from hindcast.api.options import build_model, non_default_options
from hindcast.api.sentences import sentence


class Options(BaseModel):
    """What an algorithm's options may look like."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")

    lr: Schedule = 1e-4
    bc_iters: int = Field(default=0, ge=0)
    expectile: float = Field(default=0.8, gt=0, lt=1)
    clip_by: Literal["norm", "value"] | None = "norm"
    lambda_: float = Field(default=1.0, alias="lambda")
    size: int | None = None
    twin: bool = True


STUB: dict[str, dict[str, Any]] = {
    "Stub": Options.model_json_schema() | {"x-kinds": ["OfflineTraining"]},
    "Plain": {
        "properties": {
            "lr": {"type": "number", "default": 1e-3},
            "trainBatchSizePerLearner": {"type": "integer", "default": 32},
        },
        "x-kinds": ["OfflineTraining", "OfflineRecording"],
        "x-recurrent": True,
    },
}


@pytest.fixture
def _stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (options, checks):
        monkeypatch.setattr(module, "schemas", lambda: STUB)
    options.options_model.cache_clear()
    yield
    options.options_model.cache_clear()


def said(algorithm: str, config: object, kind: str = "OfflineTraining", model: object = None) -> list[str]:
    spec = {"algorithm": algorithm, "config": config, "model": model}
    return [sentence(problem) for problem in check_algorithm(kind, spec, ("spec",))]


@pytest.mark.usefixtures("_stub")
def test_a_recurrent_model_needs_an_algorithm_that_trains_it() -> None:
    refusal = "spec.model.recurrent is 'GRU', but Stub learns from single timesteps and cannot train a recurrent policy"
    assert said("Stub", {}, model={"recurrent": "GRU"}) == [refusal]
    assert said("Plain", {}, model={"recurrent": "GRU"}) == []
    assert said("Stub", {}, model={"recurrent": "None"}) == said("Stub", {}, model="no mapping") == []


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"lr": 1},
        {"lr": [[0, 1e-3], [100, 1e-4]]},
        {"bcIters": 1e3, "lambda": 0.5, "clipBy": None, "size": 2},
    ],
)
def test_a_rebuilt_model_takes_what_the_options_take(config: dict[str, Any]) -> None:
    Options.model_validate(config)
    build_model("Stub", STUB["Stub"]).model_validate(config)


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
def test_a_rebuilt_model_refuses_what_the_options_refuse(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Options.model_validate(config)
    with pytest.raises(ValidationError):
        build_model("Stub", STUB["Stub"]).model_validate(config)


def test_a_rebuilt_model_has_the_defaults() -> None:
    assert build_model("Stub", STUB["Stub"])().model_dump() == Options().model_dump(by_alias=True)


@pytest.mark.usefixtures("_stub")
def test_sentences() -> None:
    assert said("Stub", {"bcIters": 3}) == []
    assert said("Plain", {"bcIters": 3}) == [
        "spec.config.bcIters does not apply to Plain; it is a field of Stub"
    ]
    assert said("Stub", {"bcIter": 3}) == ["spec.config.bcIter is not a field; did you mean 'bcIters'?"]
    assert said("Stub", {"size": "a", "sizes": 1}) == [
        "spec.config.size is 'a' (text), expected a whole number or nothing",
        "spec.config.sizes is not a field; did you mean 'size'?",
    ]
    assert said("Stub", {"expectile": 2, "twin": 1}) == [
        "spec.config.expectile is 2, expected less than 1",
        "spec.config.twin is 1, expected true or false",
    ]
    assert said("Stup", {}) == ["spec.algorithm is 'Stup', which is not an algorithm; did you mean 'Stub'?"]
    assert said("Stub", {}, "OfflineRecording") == [
        "spec.algorithm is Stub, which an OfflineRecording cannot use; it can use Plain"
    ]
    assert said("my.mod:Algorithm", {"anything": 1}) == []


@pytest.mark.usefixtures("_stub")
def test_normalised_config_names_only_what_differs_from_the_defaults() -> None:
    config = {"lr": 1, "bcIters": 0, "clipBy": "norm", "size": 1e1}
    assert non_default_options("Stub", config) == {"lr": 1.0, "size": 10}


def test_shipped_schemas_name_the_kinds_they_serve() -> None:
    assert options.algorithms("OfflineTraining")
    assert options.algorithms("OfflineRecording")
    for name in options.schemas():
        assert options.options_model(name)() is not None
