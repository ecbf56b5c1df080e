"""What defines a run changes only with a higher revision; what does not, changes at any time.

Both lists are read: the first from the CRDs' rules, the second from the marks in the models. A field of either
without a change to try fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from admission_changes import ANY_TIME, BOX, EXTENDABLE, OPEN, RUN, UNSEEN, Change
from admission_specs import KINDS, changed, document, merged, schema

from api_server import ApiServer, Object, RefusalError
from hindcast.api import OfflineRecording, OfflineTraining, course_hash, spec_hash, validate_resource
from hindcast.api.base import LOCATION, OPERATIONAL
from hindcast.api.sentences import models_in

MODELS = {"OfflineRecording": OfflineRecording, "OfflineTraining": OfflineTraining}
MESSAGE = "{} defines the run: it changes only with a higher revision"


def transition_rules(kind: str) -> dict[str, str]:
    """Field -> sentence of the rules that compare a spec with what it was."""
    entries = schema(kind)["properties"]["spec"]["x-kubernetes-validations"]
    return {e["fieldPath"].removeprefix("."): e["message"] for e in entries if "oldSelf" in e["rule"]}


def operational(model: Any, prefix: str = "") -> Iterator[str]:
    """The outermost fields that are marked as not defining the run."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        if OPERATIONAL in field.metadata:
            yield path
        elif LOCATION not in field.metadata:
            for below in models_in(field.annotation):
                yield from operational(below, f"{path}.")


def cases(table: dict[str, dict[str, Any]]) -> list[Any]:
    return [pytest.param(kind, field, id=f"{kind}.{field}") for kind in KINDS for field in table[kind]]


def store(api: ApiServer, namespace: str, kind: str, before: Object) -> Object:
    return api.create(document(kind, changed(kind, before)), namespace)


def hash_of(stored: Object) -> str:
    return spec_hash(validate_resource({key: stored[key] for key in stored if key != "status"}))


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_and_every_mark_has_a_change_to_try(kind: str) -> None:
    rules = transition_rules(kind)
    assert rules.pop("revision") == "revision never decreases"
    assert rules == {field: MESSAGE.format(field) for field in RUN[kind]}
    assert set(operational(MODELS[kind].model_fields["spec"].annotation)) == set(ANY_TIME[kind])


def refuse_change(
    api: ApiServer, namespace: str, kind: str, field: str, case: Change
) -> tuple[Object, Object]:
    """The stored object and the change that was refused, for this field and by its sentence."""
    before, change = case
    stored = store(api, namespace, kind, before)
    with pytest.raises(RefusalError) as refused:
        api.merge(stored, {"spec": change}, dryRun="All")
    assert refused.value.status == 422
    said = {place: text.partition(": ")[2].partition(": ")[2] for place, text in refused.value.causes}
    assert said[f"spec.{field}"] == MESSAGE.format(field)
    assert all(text.endswith("it changes only with a higher revision") for text in said.values())
    return stored, change


@pytest.mark.parametrize(("kind", "field"), cases(RUN))
def test_what_defines_the_run_changes_with_the_revision_alone(
    api: ApiServer, namespace: str, kind: str, field: str
) -> None:
    stored, change = refuse_change(api, namespace, kind, field, RUN[kind][field])
    again = api.merge(stored, {"spec": change | {"revision": 2}})
    assert again["spec"]["revision"] == 2
    # Where it lies is no part of what it is.
    located = field in ("output.path", "checkpoint.path")
    assert (hash_of(again) == hash_of(stored)) is located


@pytest.mark.parametrize(("kind", "field"), cases(OPEN))
def test_a_change_inside_an_open_field_is_seen_as_well(
    api: ApiServer, namespace: str, kind: str, field: str
) -> None:
    whole, case = OPEN[kind][field]
    stored, change = refuse_change(api, namespace, kind, whole, case)
    assert hash_of(api.merge(stored, {"spec": change | {"revision": 2}})) != hash_of(stored)


@pytest.mark.parametrize(("kind", "field"), cases(ANY_TIME))
def test_what_does_not_define_the_run_changes_at_any_time(
    api: ApiServer, namespace: str, kind: str, field: str
) -> None:
    before, change = ANY_TIME[kind][field]
    stored = store(api, namespace, kind, before)
    again = api.merge(stored, {"spec": change})
    assert again["spec"] != stored["spec"]
    assert hash_of(again) == hash_of(stored)


@pytest.mark.parametrize("field", EXTENDABLE)
def test_what_a_training_goes_on_with_changes_at_any_time(api: ApiServer, namespace: str, field: str) -> None:
    before, change = EXTENDABLE[field]
    stored = store(api, namespace, "OfflineTraining", before)
    again = api.merge(stored, {"spec": change})
    assert hash_of(again) != hash_of(stored)
    assert course_hash(validate_resource(again)) == course_hash(validate_resource(stored))


@pytest.mark.parametrize(("kind", "field"), cases(UNSEEN))
def test_what_rules_cannot_see_the_spec_hash_does(
    api: ApiServer, namespace: str, kind: str, field: str
) -> None:
    before, change = UNSEEN[kind][field]
    stored = store(api, namespace, kind, before)
    assert hash_of(api.merge(stored, {"spec": change})) != hash_of(stored)


@pytest.mark.parametrize("kind", KINDS)
def test_the_revision_never_decreases(api: ApiServer, namespace: str, kind: str) -> None:
    stored = store(api, namespace, kind, {"revision": 3})
    for revision in (2, 1, None):
        with pytest.raises(RefusalError) as refused:
            api.merge(stored, {"spec": {"revision": revision}})
        assert [field for field, _ in refused.value.causes] == ["spec.revision"]
        assert "revision never decreases" in refused.value.message
    assert api.merge(stored, {"spec": {"revision": 4}})["spec"]["revision"] == 4


def test_the_same_open_values_are_no_change(api: ApiServer, namespace: str) -> None:
    open_values: Object = {"a": [1, 2.5, {"b": {}, "c": [True, "text", []]}], "d": 1e-3, "e": 3}
    spec: Object = {
        "environment": {"kwargs": open_values, "wrappers": [{"name": "mypkg:W", "kwargs": open_values}]},
        "algorithm": "mypkg:A",
        "customConfig": open_values,
        "pipeline": {"preLearnerKwargs": open_values},
        "observationSpace": BOX,
    }
    stored = store(api, namespace, "OfflineTraining", spec)
    again = api.merge(stored, {"spec": merged(spec, {"suspend": True})})
    assert again["spec"]["suspend"] is True
    assert hash_of(again) == hash_of(stored)
    # kubectl, Helm and server-side apply write 3.0 as 3. (Clients that do not are told of a change.)
    api.apply(json.loads(json.dumps(stored_as(stored)).replace('"e": 3', '"e": 3.0')), "someone")


def stored_as(stored: Object) -> Object:
    """The object as a user would apply it again."""
    metadata = {key: stored["metadata"][key] for key in ("name", "namespace")}
    return document(stored["kind"], stored["spec"]) | {"metadata": metadata}


@pytest.mark.parametrize("kind", KINDS)
def test_writing_defaults_out_is_no_change(api: ApiServer, namespace: str, kind: str) -> None:
    stored = store(api, namespace, kind, {})
    full = {key: stored[key] for key in ("apiVersion", "kind", "metadata", "spec")}
    assert api.merge(stored, {"spec": full["spec"]})["metadata"]["generation"] == 1
    small = document(kind, changed(kind, {}))
    assert hash_of(stored) == hash_of(small)
