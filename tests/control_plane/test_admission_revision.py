"""Run-defining fields change only with a higher revision; operational fields change at any time.

The run-defining fields are read from the CRDs' rules, the operational fields from the marks in the models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from admission_changes import (
    BOX,
    CHANGES_UNSEEN_BY_RULES,
    EXTENDING_CHANGES,
    OPERATIONAL_CHANGES,
    RUN_DEFINING_CHANGES,
    UNTYPED_CHANGES,
    Change,
    find_change,
)
from admission_specs import load_schema

from api_server import ApiServer, Object, RefusalError
from hindcast.api import OfflineRecording, OfflineTraining, course_hash, spec_hash, validate_resource
from hindcast.api.base import LOCATION, OPERATIONAL
from hindcast.api.sentences import models_in
from resource_examples import KINDS, changed_spec, make_document, merge_change

MODELS = {"OfflineRecording": OfflineRecording, "OfflineTraining": OfflineTraining}
MESSAGE = "{} defines the run: it changes only with a higher revision"


def load_transition_rules(kind: str) -> dict[str, str]:
    """Return field -> message of the rules that compare a spec with its previous state."""
    entries = load_schema(kind)["properties"]["spec"]["x-kubernetes-validations"]
    return {
        entry["fieldPath"].removeprefix("."): entry["message"]
        for entry in entries
        if "oldSelf" in entry["rule"]
    }


def find_operational_fields(model: Any, prefix: str = "") -> Iterator[str]:
    """Yield the outermost fields that are marked as operational."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        if OPERATIONAL in field.metadata:
            yield path
        elif LOCATION not in field.metadata:
            for child_model in models_in(field.annotation):
                yield from find_operational_fields(child_model, f"{path}.")


def list_operational_fields(kind: str) -> list[str]:
    return list(find_operational_fields(MODELS[kind].model_fields["spec"].annotation))


def list_run_defining_fields(kind: str) -> list[str]:
    return [field for field in load_transition_rules(kind) if field != "revision"]


def make_cases(list_fields: Callable[[str], Iterable[str]]) -> list[Any]:
    return [pytest.param(kind, field, id=f"{kind}.{field}") for kind in KINDS for field in list_fields(kind)]


def create_resource(api: ApiServer, namespace: str, kind: str, initial_change: Object) -> Object:
    return api.create(make_document(kind, changed_spec(kind, initial_change)), namespace)


def compute_stored_hash(resource: Object) -> str:
    return spec_hash(validate_resource({key: resource[key] for key in resource if key != "status"}))


@pytest.mark.parametrize("kind", KINDS)
def test_transition_rules_name_their_fields(kind: str) -> None:
    rules = load_transition_rules(kind)
    assert rules.pop("revision") == "revision never decreases"
    assert rules == {field: MESSAGE.format(field) for field in rules}
    assert RUN_DEFINING_CHANGES[kind].keys() <= rules.keys()
    assert OPERATIONAL_CHANGES[kind].keys() <= set(list_operational_fields(kind))


def check_change_is_refused(
    api: ApiServer, namespace: str, kind: str, field: str, case: Change
) -> tuple[Object, Object]:
    """Check that a change is refused with the message of the field. Return the stored object and the change."""
    initial_change, change = case
    resource = create_resource(api, namespace, kind, initial_change)
    with pytest.raises(RefusalError) as error_info:
        api.merge(resource, {"spec": change}, dryRun="All")
    assert error_info.value.status == 422
    # A cause reads `Invalid value: "object": message`.
    causes = {
        field_path: text.partition(": ")[2].partition(": ")[2] for field_path, text in error_info.value.causes
    }
    assert causes[f"spec.{field}"] == MESSAGE.format(field)
    assert all(text.endswith("it changes only with a higher revision") for text in causes.values())
    return resource, change


@pytest.mark.parametrize(("kind", "field"), make_cases(list_run_defining_fields))
def test_run_defining_field_changes_only_with_revision(
    api: ApiServer, namespace: str, kind: str, field: str
) -> None:
    resource, change = check_change_is_refused(
        api, namespace, kind, field, find_change(RUN_DEFINING_CHANGES, kind, field)
    )
    new_resource = api.merge(resource, {"spec": change | {"revision": 2}})
    assert new_resource["spec"]["revision"] == 2
    # A location does not define the run.
    is_location = field in ("output.path", "checkpoint.path")
    assert (compute_stored_hash(new_resource) == compute_stored_hash(resource)) is is_location


@pytest.mark.parametrize(("kind", "field"), make_cases(UNTYPED_CHANGES.__getitem__))
def test_change_inside_untyped_field_requires_revision(
    api: ApiServer, namespace: str, kind: str, field: str
) -> None:
    parent_field, case = UNTYPED_CHANGES[kind][field]
    resource, change = check_change_is_refused(api, namespace, kind, parent_field, case)
    assert compute_stored_hash(
        api.merge(resource, {"spec": change | {"revision": 2}})
    ) != compute_stored_hash(resource)


@pytest.mark.parametrize(("kind", "field"), make_cases(list_operational_fields))
def test_operational_field_changes_without_revision(
    api: ApiServer, namespace: str, kind: str, field: str
) -> None:
    initial_change, change = find_change(OPERATIONAL_CHANGES, kind, field)
    resource = create_resource(api, namespace, kind, initial_change)
    new_resource = api.merge(resource, {"spec": change})
    assert new_resource["spec"] != resource["spec"]
    assert compute_stored_hash(new_resource) == compute_stored_hash(resource)


@pytest.mark.parametrize("field", EXTENDING_CHANGES)
def test_stop_and_evaluation_change_without_revision(api: ApiServer, namespace: str, field: str) -> None:
    initial_change, change = EXTENDING_CHANGES[field]
    resource = create_resource(api, namespace, "OfflineTraining", initial_change)
    new_resource = api.merge(resource, {"spec": change})
    assert compute_stored_hash(new_resource) != compute_stored_hash(resource)
    assert course_hash(validate_resource(new_resource)) == course_hash(validate_resource(resource))


@pytest.mark.parametrize(("kind", "field"), make_cases(CHANGES_UNSEEN_BY_RULES.__getitem__))
def test_change_unseen_by_rules_changes_spec_hash(
    api: ApiServer, namespace: str, kind: str, field: str
) -> None:
    initial_change, change = CHANGES_UNSEEN_BY_RULES[kind][field]
    resource = create_resource(api, namespace, kind, initial_change)
    assert compute_stored_hash(api.merge(resource, {"spec": change})) != compute_stored_hash(resource)


@pytest.mark.parametrize("kind", KINDS)
def test_revision_never_decreases(api: ApiServer, namespace: str, kind: str) -> None:
    resource = create_resource(api, namespace, kind, {"revision": 3})
    for revision in (2, 1, None):
        with pytest.raises(RefusalError) as error_info:
            api.merge(resource, {"spec": {"revision": revision}})
        assert [field for field, _ in error_info.value.causes] == ["spec.revision"]
        assert "revision never decreases" in error_info.value.message
    assert api.merge(resource, {"spec": {"revision": 4}})["spec"]["revision"] == 4


def test_equal_untyped_values_are_no_change(api: ApiServer, namespace: str) -> None:
    untyped_values: Object = {"a": [1, 2.5, {"b": {}, "c": [True, "text", []]}], "d": 1e-3, "e": 3}
    spec: Object = {
        "environment": {
            "kwargs": untyped_values,
            "wrappers": [{"name": "mypkg:W", "kwargs": untyped_values}],
        },
        "algorithm": "mypkg:A",
        "customConfig": untyped_values,
        "pipeline": {"preLearnerKwargs": untyped_values},
        "observationSpace": BOX,
    }
    resource = create_resource(api, namespace, "OfflineTraining", spec)
    new_resource = api.merge(resource, {"spec": merge_change(spec, {"suspend": True})})
    assert new_resource["spec"]["suspend"] is True
    assert compute_stored_hash(new_resource) == compute_stored_hash(resource)
    # kubectl, Helm and server-side apply send 3.0 as 3. For other clients, 3.0 counts as a change.
    api.apply(json.loads(json.dumps(make_reapplied_form(resource)).replace('"e": 3', '"e": 3.0')), "someone")


def make_reapplied_form(stored: Object) -> Object:
    """Return the stored object as a user would apply it again."""
    metadata = {key: stored["metadata"][key] for key in ("name", "namespace")}
    return make_document(stored["kind"], stored["spec"]) | {"metadata": metadata}


@pytest.mark.parametrize("kind", KINDS)
def test_explicit_defaults_are_no_change(api: ApiServer, namespace: str, kind: str) -> None:
    resource = create_resource(api, namespace, kind, {})
    explicit_document = {key: resource[key] for key in ("apiVersion", "kind", "metadata", "spec")}
    assert api.merge(resource, {"spec": explicit_document["spec"]})["metadata"]["generation"] == 1
    minimal_document = make_document(kind, changed_spec(kind, {}))
    assert compute_stored_hash(resource) == compute_stored_hash(minimal_document)
