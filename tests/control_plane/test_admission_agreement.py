"""`hindcast validate` and the API server accept and refuse the same resources.

`DIFFERENCES` and `INTENDED_DIFFERENCES` list the exceptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from admission_specs import Node, spec_with_value, walk_nodes

from api_server import ApiServer, Object, RefusalError, collection, plural
from hindcast.api import load_resources, validate_resource
from hindcast.errors import Problem, SpecError, parse_path
from layers import LAYER
from resource_examples import (
    API_VERSION,
    KINDS,
    KNOWN_TO_LOADER_ONLY,
    SPECS,
    changed_spec,
    invalid_changes,
    make_document,
    valid_changes,
)

# -- every field of the schema with values of every type ---------------------------------------------------------

VALUES: tuple[Any, ...] = (
    *("text", "", "1Gi", "x" * 5000),
    *(-1, 0, 1, 1.5, 1e30, True),
    *([], [1], [{}], {}, {"a": "b"}),
)


def has_several_types(node: Node) -> bool:
    """Return True for a schedule, which is a number or a list. The API server checks its bounds, not its type."""
    return "config" in node.path and "type" not in node.schema


def is_wrapper_or_connector(node: Node) -> bool:
    """Return True within a wrapper or connector, a name or a mapping: the server does not check its name and kwargs."""
    return bool({"wrappers", "connectors"} & set(node.path))


def is_initializer(node: Node) -> bool:
    """Return True within an initialiser, which, like a wrapper, is a name or a mapping with name and kwargs."""
    return any(name.endswith("Initializer") for name in node.path)


def is_column_map(node: Node) -> bool:
    """Return True within a map of columns, in which a value is a column's name, a list of names, or a rule."""
    return bool({"schema", "missing"} & set(node.path))


def has_read_options(node: Node) -> bool:
    """Return True for the options of a format: only the loader knows their names."""
    return "readOptions" in node.path


def is_stall_timeout(node: Node) -> bool:
    """Return True for `stallTimeoutSeconds`, which had no minimum in earlier versions."""
    return node.path[-1:] == ("stallTimeoutSeconds",)


DIFFERENCES: dict[str, Callable[[Node], bool]] = {
    "schedules": has_several_types,
    "wrappers and connectors": is_wrapper_or_connector,
    "initialisers": is_initializer,
    "column maps": is_column_map,
    "read options": has_read_options,
    "stall timeout": is_stall_timeout,
}
"""Name -> nodes for which the API server accepts what the loader refuses. The operator reports the loader's message."""


def find_loader_refusal(resource: Object) -> str:
    try:
        validate_resource(json.loads(json.dumps(resource)))
    except SpecError as error:
        return str(error)
    return ""


def find_server_refusal(api: ApiServer, dry_run_namespace: str, resource: Object) -> str:
    """Return the API server's message; empty if it accepts the resource.

    The resource is sent as YAML, as by kubectl. In YAML, 1e3 is an integer.
    """
    path, text = api.path_of(resource, dry_run_namespace), json.dumps(resource)
    try:
        api.request("POST", path, text, "application/yaml", fieldValidation="Strict", dryRun="All")
    except RefusalError as error:
        assert error.status in (400, 422), error
        return error.message
    return ""


def find_refusals(api: ApiServer, dry_run_namespace: str, resource: Object) -> tuple[str, str]:
    """Return the messages of the loader and of the API server."""
    return find_loader_refusal(resource), find_server_refusal(api, dry_run_namespace, resource)


def find_nodes_to_check(kind: str) -> list[Node]:
    """Return all nodes below the spec in soak tests, else one of each group that server and loader treat alike."""
    all_nodes = list(walk_nodes(kind))[1:]
    if LAYER == "soak":
        return all_nodes
    return list(
        {
            (dump_schema(node), find_accepted_values(node), *find_differences(node)): node
            for node in all_nodes
        }.values()
    )


def find_differences(node: Node) -> list[str]:
    return [name for name, covers in DIFFERENCES.items() if covers(node)]


def dump_schema(node: Node) -> str:
    """Return the schema by which the API server checks a value of a node."""
    schema = {name: part for name, part in node.schema.items() if name != "description"}
    return json.dumps(schema, sort_keys=True)


def find_accepted_values(node: Node) -> tuple[bool, ...]:
    """Return, for each of `VALUES`, True if the loader accepts the value at a node."""
    return tuple(
        not find_loader_refusal(make_document(node.kind, spec_with_value(node, value))) for value in VALUES
    )


@pytest.mark.parametrize("kind", KINDS)
def test_loader_and_server_agree_on_every_field(api: ApiServer, dry_run_namespace: str, kind: str) -> None:
    num_accepted = num_refused = 0
    seen_differences: set[str] = set()
    for node in find_nodes_to_check(kind):
        known_differences = find_differences(node)
        for value in VALUES:
            resource = make_document(kind, spec_with_value(node, value))
            loader_message, server_message = find_refusals(api, dry_run_namespace, resource)
            if bool(loader_message) == bool(server_message):
                num_accepted += not loader_message
                num_refused += bool(loader_message)
                continue
            messages = f"the loader says {loader_message!r}, the API server {server_message!r}"
            difference = f"{node.field} = {value!r:.60}: {messages}"
            assert known_differences, difference
            assert loader_message, difference
            seen_differences.update(known_differences)
    assert seen_differences == {name for node in walk_nodes(kind) for name in find_differences(node)}
    assert num_accepted > 100
    assert num_refused > 300


# -- resources --------------------------------------------------------------------------------------------------------

LOST_WITH_POD = "would be lost with the pod; use object storage, a mounted volume or a relative path"
HIDDEN_FROM_SERVER = (
    "spec.input[0].schema",
    "spec.input[0].prepare.missing ",
    "spec.evaluation.gate.explore",
    "spec.runPolicy.stallTimeoutSeconds",
    *KNOWN_TO_LOADER_ONLY,
)
"""Beginnings of messages that only the loader has: CEL cannot read the field, or earlier versions accepted it."""
LOST_PATHS = ("/tmp", "/tmp/data", "file:///var/tmp/data", "/dev/shm/data", "memory://data")


def find_server_problems(api: ApiServer, dry_run_namespace: str, kind: str, spec: Object) -> list[str]:
    """Return the sentence of each cause of a refusal."""
    with pytest.raises(RefusalError) as error_info:
        api.create(make_document(kind, spec), dry_run_namespace, dryRun="All")
    assert error_info.value.status == 422
    return [
        str(Problem(parse_path(field), re.sub(r'^Invalid value: ("[^"]*"|[^:]*): ', "", text)))
        for field, text in error_info.value.causes
    ]


@pytest.mark.parametrize(("kind", "change"), valid_changes())
def test_server_accepts_valid_resource(
    api: ApiServer, dry_run_namespace: str, kind: str, change: Object
) -> None:
    spec = changed_spec(kind, change)
    assert find_server_refusal(api, dry_run_namespace, make_document(kind, spec)) == ""


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [case for case in invalid_changes() if not case[2].startswith(HIDDEN_FROM_SERVER)],
)
def test_server_reports_mistake_in_the_sentence_of_the_loader(
    api: ApiServer, dry_run_namespace: str, kind: str, change: Object, expected: str
) -> None:
    (problem,) = find_server_problems(api, dry_run_namespace, kind, changed_spec(kind, change))
    assert re.fullmatch(server_pattern(expected), problem)


def server_pattern(sentence_of_loader: str) -> str:
    """Return a pattern for the API server's sentence: without the values found, with any path before a field's name."""
    pattern = re.escape(sentence_of_loader.partition(", found ")[0])
    pattern = re.sub(r"is\\ \S+,\\ expected\\ (.*?),\\ [-.\\\d]+(?=$|:|;)", r"must\\ be\\ \1", pattern)
    return re.sub(r"(?<!^)spec\\\.[\w.\\]*?(\w+)(?![\w.\\]*\.\w)", r"\\S*\1", pattern)


@pytest.mark.parametrize("path", LOST_PATHS)
def test_server_refuses_path_that_is_lost_with_the_pod(
    api: ApiServer, dry_run_namespace: str, path: str
) -> None:
    spec = changed_spec("OfflineTraining", {"checkpoint": {"path": path}})
    assert find_loader_refusal(make_document("OfflineTraining", spec)) == ""
    problems = find_server_problems(api, dry_run_namespace, "OfflineTraining", spec)
    assert problems == [f"spec.checkpoint.path {LOST_WITH_POD}"]


@pytest.mark.parametrize(
    ("metadata", "is_refused"),
    [
        ({"labels": {"team": "red", "example.com/x": ""}, "annotations": {"a": "b c" * 5000}}, False),
        ({"labels": {"team": "red green"}}, True),
        ({"labels": {"a/b/c": "red"}}, True),
        ({"labels": {"team": 1}}, True),
        ({"annotations": {"a": True}}, True),
        ({"name": "a-1"}, False),
        ({"name": "a" * 37}, True),
        ({"name": "1a"}, True),
        ({"name": "Ab"}, True),
        ({"name": "a_b"}, True),
        ({"name": "ab\n"}, True),
        ({"nam": "ab"}, True),
    ],
)
def test_loader_and_server_agree_on_metadata(
    api: ApiServer, dry_run_namespace: str, metadata: Object, is_refused: bool
) -> None:
    resource = make_document("OfflineTraining", SPECS["OfflineTraining"])
    resource["metadata"] = resource["metadata"] | metadata
    messages = find_refusals(api, dry_run_namespace, resource)
    assert [*map(bool, messages)] == [is_refused, is_refused], messages


# -- intended differences that do not depend on a field's schema ---------------------------------------------------

EMPTY_FIELD = "an empty field: the API server treats it as absent, the loader refuses it as a likely mistake"
CUSTOM_WITH_EMPTY_CONFIG = "`config: {}` of a custom algorithm: a rule cannot see that it is empty"
INTENDED_DIFFERENCES = [
    pytest.param({"seed": None}, True, False, id=EMPTY_FIELD),
    pytest.param({"algorithm": "a:B", "config": {}}, False, True, id=CUSTOM_WITH_EMPTY_CONFIG),
]


@pytest.mark.parametrize(("change", "is_refused_by_loader", "is_refused_by_server"), INTENDED_DIFFERENCES)
def test_intended_differences_exist(
    api: ApiServer,
    dry_run_namespace: str,
    change: Object,
    is_refused_by_loader: bool,
    is_refused_by_server: bool,
) -> None:
    resource = make_document("OfflineTraining", SPECS["OfflineTraining"] | change)
    messages = find_refusals(api, dry_run_namespace, resource)
    assert [*map(bool, messages)] == [is_refused_by_loader, is_refused_by_server], messages


# -- YAML scalars -----------------------------------------------------------------------------------------------------

SCALARS_WITH_SAME_VALUE = (
    *("1", "-1", "1.5", "8e-4", "8.0e-4", "1e3", ".5", "true", "false", "null", "~"),
    *("''", "'1'", "0x1f", "a b", "2026-01-01", "0o17", "1_000", "0b11"),
)
YAML_1_1_SCALARS = ("yes", "on", "010")
"""Scalars that have another meaning in YAML 1.1, which the API server reads."""


@pytest.mark.parametrize("scalar", SCALARS_WITH_SAME_VALUE + YAML_1_1_SCALARS)
def test_yaml_scalars_have_same_value_for_loader_and_server(
    api: ApiServer, dry_run_namespace: str, tmp_path: Any, scalar: str
) -> None:
    text = (
        f"apiVersion: {API_VERSION}\nkind: OfflineTraining\nmetadata: {{name: scalars}}\n"
        "spec:\n  algorithm: mypkg:A\n  input: [{path: a}]\n  stop: {epochs: 1}\n"
        f"  customConfig:\n    value: {scalar}\n"
    )
    path = collection(API_VERSION, plural("OfflineTraining"), dry_run_namespace)
    response = api.request("POST", path, text, "application/yaml", dryRun="All")
    file = tmp_path / "scalars.yaml"
    file.write_text(text)
    (loaded_resource,) = load_resources(file)
    server_value, loader_value = response["spec"]["customConfig"], loaded_resource.resource.spec.custom_config
    assert (server_value == loader_value) is (scalar in SCALARS_WITH_SAME_VALUE), (loader_value, server_value)
