"""Enums: PascalCase in YAML, RLlib's spelling in Python; one value and one spec hash for both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hindcast.api import document_of, load_resources, spec_hash, validate_resource
from hindcast.api.evaluation import EvaluationSpec
from hindcast.api.model import ModelSpec
from hindcast.api.spelling import IN_PYTHON
from hindcast.errors import SpecError
from resource_examples import make_document

BASE_SPEC: dict[str, Any] = {"algorithm": "BC", "input": [{"path": "data"}], "stop": {"updates": 1}}
YAML_SPELLING: dict[str, Any] = {
    "model": {"recurrent": "LSTM", "observationFilter": "MeanStd", "distribution": "SquashedGaussian"},
    "config": {"gradClip": 1.0, "gradClipBy": "Norm", "lr": [[0, 1e-3, "Cosine"], [1000, 0.0]]},
    "environment": {"id": "CartPole-v1"},
    "evaluation": {"duration": "Auto", "durationUnit": "Episodes", "parallelToTraining": True},
    "learners": {"device": "Auto"},
}
PYTHON_SPELLING: dict[str, Any] = {
    "model": {"recurrent": "lstm", "observationFilter": "meanStd", "distribution": "squashedGaussian"},
    "config": {"gradClip": 1.0, "gradClipBy": "norm", "lr": [[0, 1e-3, "cosine"], [1000, 0.0]]},
    "environment": {"id": "CartPole-v1"},
    "evaluation": {"duration": "auto", "durationUnit": "episodes", "parallelToTraining": True},
    "learners": {"device": "auto"},
}


def make_training(spec: dict[str, Any]) -> dict[str, Any]:
    return make_document("OfflineTraining", BASE_SPEC | spec, "clone")


def refusal_messages(folder: Path, spec: dict[str, Any]) -> list[str]:
    """Return the lines of the error for a file with this spec, without the file's name."""
    file = folder / "run.json"
    file.write_text(json.dumps(make_training(spec)), encoding="utf-8")
    with pytest.raises(SpecError) as error:
        load_resources(file)
    return [line.removeprefix(f"{file}:1: ") for line in str(error.value).splitlines()]


def test_both_spellings_give_equal_resources_and_hashes() -> None:
    resources = [validate_resource(make_training(spec)) for spec in (YAML_SPELLING, PYTHON_SPELLING)]
    assert resources[0] == resources[1]
    assert resources[0].spec.model.recurrent == "lstm"  # type: ignore[union-attr]
    # The hash that version 053aa6a computes, which only had Python's spelling.
    assert {spec_hash(resource) for resource in resources} == {"d328ae7071224eb0"}


def test_document_of_resource_from_python_loads(tmp_path: Path) -> None:
    resource = validate_resource(make_training(PYTHON_SPELLING))
    assert document_of(resource) == make_training(YAML_SPELLING)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(document_of(resource)), encoding="utf-8")
    (loaded_resource,) = load_resources(file)
    assert loaded_resource.resource == resource


def test_python_spelling_in_a_file_says_what_to_write(tmp_path: Path) -> None:
    assert refusal_messages(tmp_path, PYTHON_SPELLING) == [
        "spec.model.distribution is 'squashedGaussian': write SquashedGaussian",
        "spec.model.observationFilter is 'meanStd': write MeanStd",
        "spec.model.recurrent is 'lstm': write LSTM",
        "spec.learners.device is 'auto': write Auto",
        "spec.evaluation.duration is 'auto': write Auto",
        "spec.evaluation.durationUnit is 'episodes': write Episodes",
        "spec.config.gradClipBy is 'norm': write Norm",
        "spec.config.lr[0][2] is 'cosine': write Cosine",
    ]


def test_unknown_value_in_a_file_lists_yaml_spellings(tmp_path: Path) -> None:
    assert refusal_messages(
        tmp_path, {"model": {"observationFilter": "meanstd"}, "config": {"gradClipBy": "l2"}}
    ) == [
        "spec.model.observationFilter is 'meanstd' (text), expected None or MeanStd; did you mean 'MeanStd'?",
        "spec.config.gradClipBy is 'l2' (text), expected GlobalNorm, Norm or Value",
    ]


def test_unknown_value_from_python_lists_python_spellings() -> None:
    with pytest.raises(ValidationError, match="'none' or 'meanStd'"):
        ModelSpec.model_validate({"observationFilter": "meanstd"})


def test_dump_by_yaml_names_has_yaml_spelling_unless_python_spelling_is_requested() -> None:
    model = ModelSpec(recurrent="gru")
    assert model.model_dump()["recurrent"] == "gru"
    assert model.model_dump(by_alias=True)["recurrent"] == "GRU"
    assert model.model_dump(by_alias=True, context=IN_PYTHON)["recurrent"] == "gru"
    assert EvaluationSpec().model_dump(by_alias=True)["duration"] == 10
    assert ModelSpec.in_yaml("distribution", "boundedGaussian") == "BoundedGaussian"
    assert ModelSpec.in_yaml("fcnetHiddens", [8]) == [8]
