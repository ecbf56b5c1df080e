"""Each rule is checked by the loader and by the API server: its CEL and its Python have the same results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import celpy
import pytest

from hindcast.api import OfflineRecording, OfflineTraining, base, validate_resource
from hindcast.api.base import LOCATION_RULES, Model
from hindcast.api.checks import algorithm_rules
from hindcast.api.options import algorithms, schemas
from hindcast.api.rules import Rule, name_fields
from hindcast.errors import SpecError
from resource_examples import (
    KNOWN_TO_LOADER_ONLY,
    changed_spec,
    invalid_changes,
    make_document,
    valid_changes,
)

MODELS = {"OfflineRecording": OfflineRecording, "OfflineTraining": OfflineTraining}
NUM_DOCUMENTS = 3
"""Number of documents for which CEL evaluates a rule, of those that keep it and of those that break it."""


@pytest.mark.parametrize(("kind", "change"), valid_changes())
def test_valid_resource_is_accepted(kind: str, change: dict[str, Any]) -> None:
    assert validate_resource(make_document(kind, changed_spec(kind, change))).kind == kind


@pytest.mark.parametrize(("kind", "change", "expected"), invalid_changes())
def test_mistake_is_reported_in_one_sentence(kind: str, change: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError) as error:
        validate_resource(make_document(kind, changed_spec(kind, change)))
    assert str(error.value) == expected


def iterate_parts(value: Any) -> Iterator[Model]:
    """Yield all models in a value."""
    if isinstance(value, Model):
        yield value
        for name in type(value).model_fields:
            yield from iterate_parts(getattr(value, name))
    elif isinstance(value, list | dict):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from iterate_parts(entry)


def iterate_rules(kind: str, spec: Model) -> Iterator[tuple[Sequence[Rule], Any]]:
    """Yield (rules, plain values) for each part of a spec that has rules, and for some locations."""
    for part in iterate_parts(spec):
        rules = [*part.rules, *(ALGORITHM_RULES[kind] if hasattr(part, "algorithm") else ())]
        if rules:
            yield rules, part.plain_values()
    for location in ("/tmp/data", "memory:", "s3://bucket", "s3://key:secret@bucket"):
        yield LOCATION_RULES, location


ALGORITHM_RULES = {kind: list(algorithm_rules(kind, schemas())) for kind in MODELS}


def foreign_options(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield, for each option that not all algorithms have, a change to an algorithm without it."""
    options = {option for schema in schemas().values() for option in schema["properties"]}
    for option in sorted(options):
        others = [name for name in algorithms(kind) if option not in schemas()[name]["properties"]]
        for algorithm in others[:1]:
            section = {"algorithm": algorithm, "config": {option: 1}}
            expert = {"policy": {"random": None, "train": {**section, "stop": {"timesteps": 9}}}}
            yield kind, expert if kind == "OfflineRecording" else section


def test_cel_of_each_rule_has_the_result_of_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "check_rules", lambda rules, part: None)
    documents: dict[Rule, dict[bool, list[Any]]] = defaultdict(lambda: {True: [], False: []})
    changes = valid_changes()
    changes += [
        (kind, change)
        for kind, change, sentence in invalid_changes()
        if " is needed, " not in sentence and not sentence.startswith(KNOWN_TO_LOADER_ONLY)
    ]
    changes += [change for kind in MODELS for change in foreign_options(kind)]
    for kind, change in changes:
        resource = MODELS[kind].model_validate(make_document(kind, changed_spec(kind, change)))
        for rules, values in iterate_rules(kind, resource.spec):
            for rule in rules:
                documents[rule][bool(rule.holds.evaluate(values))].append(values)
    environment = celpy.Environment()
    for rule, documents_by_result in documents.items():
        program = environment.program(environment.compile(rule.holds.cel("self")))
        for expected, examples in documents_by_result.items():
            assert examples, f"no example for which {rule.field}: {rule.message!r} is {expected}"
            for values in examples[:NUM_DOCUMENTS]:
                assert program.evaluate({"self": celpy.json_to_cel(values)}) == expected, (rule, values)
        check_message(environment, rule, documents_by_result[False][0])


def check_message(environment: celpy.Environment, rule: Rule, values: Any) -> None:
    """Check that the API server's message is the loader's, except that it names no numbers."""
    expected = name_fields(rule.text(values) if rule.cel_message is None else rule.cel_message)
    validation = rule.validation()
    if "messageExpression" in validation:
        program = environment.program(environment.compile(validation["messageExpression"]))
        assert program.evaluate({"self": celpy.json_to_cel(values)}) == expected
    else:
        assert validation["message"] == expected
