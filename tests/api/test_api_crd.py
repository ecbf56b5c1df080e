"""Generated CRDs obey the API server's rules. (`tests/control_plane` applies them to a real server.)"""

import json
import re
from collections.abc import Iterator
from typing import Any

import celpy
import pytest
from pydantic import BaseModel, Field

from hindcast.api import options
from hindcast.api.crd import custom_resource_definitions
from hindcast.api.structural import OPEN, to_structural

STUB_SCHEMAS: dict[str, Any] = {
    "BC": {
        "properties": {"lr": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]}},
        "x-kinds": ["OfflineTraining"],
    },
    "CQL": {
        "properties": {
            "lr": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]},
            "bcIters": {"type": "integer", "default": 20000, "minimum": 0, "description": "Warm-up."},
            "alphaLr": {"anyOf": [{"type": "number"}, {"type": "array"}], "default": 1e-3},
            "gradClip": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": 10.0},
            "tau": {"type": "number", "maximum": 1},
        },
        "x-kinds": ["OfflineTraining"],
    },
    "IQL": {
        "properties": {
            "bcIters": {"type": "integer", "default": 10, "minimum": 1, "description": "Other."},
            "in": {"type": "boolean"},
            "tau": {"type": "string"},
        },
        "x-kinds": ["OfflineTraining"],
    },
    "PPO": {"properties": {"gamma": {"type": "number"}}, "x-kinds": ["OfflineRecording"]},
}
PLURALS = ("offlinerecordings", "offlinetrainings")


def get_version(definition: dict[str, Any]) -> dict[str, Any]:
    first_version: dict[str, Any] = definition["spec"]["versions"][0]
    return first_version


def get_root_schema(definition: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = get_version(definition)["schema"]["openAPIV3Schema"]
    return schema


@pytest.fixture(params=PLURALS)
def definition(request: pytest.FixtureRequest) -> dict[str, Any]:
    return custom_resource_definitions(options.schemas())[request.param]


def get_spec_schema(definition: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = get_root_schema(definition)["properties"]["spec"]
    return spec


@pytest.fixture
def stub_training_spec() -> dict[str, Any]:
    return get_spec_schema(custom_resource_definitions(STUB_SCHEMAS)["offlinetrainings"])


def iterate_nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from iterate_nodes(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from iterate_nodes(schema[key], f"{path}[]")


def get_rules(schema: dict[str, Any]) -> list[dict[str, str]]:
    validations: list[dict[str, str]] = schema.get("x-kubernetes-validations", [])
    return validations


def test_schema_is_structural(definition: dict[str, Any]) -> None:
    for path, node in iterate_nodes(get_root_schema(definition)):
        assert not {"$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "title"} & set(node), path
        assert node.get("type") or node.get(OPEN) or node.get("x-kubernetes-int-or-string"), path
        assert not ("additionalProperties" in node and "properties" in node), path
        assert (
            not isinstance(node.get("exclusiveMinimum"), float | int) or node["exclusiveMinimum"] is True
        ), path


def test_schema_bounds_every_field(definition: dict[str, Any]) -> None:
    limits = {"string": "maxLength", "array": "maxItems"}
    for path, node in iterate_nodes(get_spec_schema(definition)):
        if node.get("type") in limits and "enum" not in node:
            assert limits[node["type"]] in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


def test_definition_fits_into_an_annotation(definition: dict[str, Any]) -> None:
    assert len(json.dumps(definition)) < 256 * 1024


def test_schema_describes_every_field(definition: dict[str, Any]) -> None:
    undescribed_paths = [
        path
        for path, node in iterate_nodes(get_root_schema(definition))
        if re.search(r"\.\w+$", path) and not node.get("description")
    ]
    assert undescribed_paths == [".apiVersion", ".kind", ".metadata"]


def test_new_object_is_not_mistaken_for_a_finished_one(definition: dict[str, Any]) -> None:
    assert get_version(definition)["subresources"] == {"status": {}}
    assert get_root_schema(definition)["properties"]["status"]["default"] == {"observedGeneration": -1}


def test_printer_columns_show_fields_that_exist(definition: dict[str, Any]) -> None:
    columns = get_version(definition)["additionalPrinterColumns"]
    default_columns = [column["name"] for column in columns if not column.get("priority")]
    wide_columns = [column["name"] for column in columns if column.get("priority")]
    assert default_columns == ["State", "Reason", "Algorithm", "Progress", "Return", "Attempt", "Age"]
    assert wide_columns[0] == "RayJob"
    assert wide_columns[-1] == "Message"
    field_paths = {path for path, _ in iterate_nodes(get_root_schema(definition))}
    for column in columns:
        path = re.sub(r"\[.*?\](?=\.)", "[]", column["jsonPath"])
        assert path in field_paths | {".metadata.creationTimestamp"}


def test_selectable_fields_have_scalar_types(definition: dict[str, Any]) -> None:
    schema_by_path = dict(iterate_nodes(get_root_schema(definition)))
    paths = [field["jsonPath"] for field in get_version(definition)["selectableFields"]]
    assert paths[:2] == [".status.state", ".spec.suspend"]
    assert [schema_by_path[path]["type"] for path in paths] == ["string", "boolean", "string", "string"]


def test_lists_of_named_entries_merge_by_name(definition: dict[str, Any]) -> None:
    lists = {
        re.sub(r"\[\]$", "", path): node
        for path, node in iterate_nodes(get_root_schema(definition))
        if node.get("type") == "array"
    }
    keys = {
        path: node["x-kubernetes-list-map-keys"]
        for path, node in lists.items()
        if node["x-kubernetes-list-type"] == "map"
    }
    assert keys == {
        ".spec.cluster.env": ["name"],
        ".spec.cluster.imagePullSecrets": ["name"],
        ".spec.cluster.volumes": ["name"],
        ".status.conditions": ["type"],
        ".status.runs": ["revision", "attempt"],
    }
    sets = [path for path, node in lists.items() if node["x-kubernetes-list-type"] == "set"]
    assert {path.rsplit(".", 1)[-1] for path in sets} == (
        {"columns", "compressColumns"} if ".spec.input" in lists else {"compressColumns"}
    )
    assert {node["x-kubernetes-list-type"] for node in lists.values()} == {"map", "set", "atomic"}


def test_enums_are_in_pascal_case_except_for_names_of_other_libraries(definition: dict[str, Any]) -> None:
    other_values_by_path = {
        path: [value for value in node["enum"] if not re.fullmatch(r"[A-Z0-9][A-Za-z0-9]*", value)]
        for path, node in iterate_nodes(get_root_schema(definition))
        if "enum" in node
    }
    fields = {path.rsplit(".", 1)[-1].strip("[]") for path, values in other_values_by_path.items() if values}
    model_fields = {"convActivation", "convPadding", "fcnetActivation"}
    assert fields <= model_fields | {"compression", "device", "estimates", "medium", "op"}


def test_descriptions_name_the_defaults_of_fields(definition: dict[str, Any]) -> None:
    paths_without_default = [
        path
        for path, node in iterate_nodes(get_root_schema(definition))
        if path.startswith(".spec.")
        and "default" in node
        and "properties" not in node
        and "Default:" not in node["description"]
    ]
    assert paths_without_default == []
    spec = get_spec_schema(definition)["properties"]
    assert spec["seed"]["description"].endswith(" Default: 0.")
    assert spec["runPolicy"]["properties"]["backoffLimit"]["description"].endswith(" Default: 3.")


def test_options_have_no_defaults_in_the_schema(definition: dict[str, Any]) -> None:
    configs = [node for path, node in iterate_nodes(get_root_schema(definition)) if path.endswith(".config")]
    assert len(configs) == 1
    assert all("default" not in node for _, node in iterate_nodes(configs[0]))


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("minQWeight", "Default: CQL 5, DiscreteCQL 1."),
        ("tau", "Default: 0.005."),
        ("targetEntropy", "Default: null."),
        ("gradClipBy", "Default: GlobalNorm."),
        ("epsilon", "Default: [[0, 1], [10000, 0.05]]."),
    ],
)
def test_descriptions_name_the_defaults_of_options(option: str, expected: str) -> None:
    spec = get_spec_schema(custom_resource_definitions(options.schemas())["offlinetrainings"])
    assert spec["properties"]["config"]["properties"][option]["description"].endswith(f" {expected}")


def test_schema_has_only_informative_defaults(stub_training_spec: dict[str, Any]) -> None:
    spec = stub_training_spec["properties"]
    assert spec["seed"]["default"] == 0
    assert spec["pipeline"]["default"] == {}
    assert spec["pipeline"]["properties"]["windowSteps"]["default"] == 2**20
    # An empty section means the same as none, and the operator adds the platform's defaults later.
    assert "default" not in spec["cluster"]
    assert "default" not in spec["evaluation"]


def test_options_are_the_union_of_all_algorithms(stub_training_spec: dict[str, Any]) -> None:
    config = stub_training_spec["properties"]["config"]["properties"]
    assert sorted(config) == ["alphaLr", "bcIters", "gradClip", "in", "lr", "tau"]
    # If the algorithms disagree about a type, only the loader checks it.
    assert config["bcIters"] == {
        "type": "integer",
        "format": "int64",
        "description": "CQL: Warm-up. IQL: Other. Default: CQL 20000, IQL 10.",
    }
    assert config["tau"][OPEN] is True
    assert "type" not in config["tau"]
    assert config["gradClip"]["nullable"] is True


def test_number_or_list_refuses_text_by_a_readable_pattern(stub_training_spec: dict[str, Any]) -> None:
    lr = stub_training_spec["properties"]["config"]["properties"]["lr"]
    assert lr[OPEN] is True
    assert not re.match(lr["pattern"], "fast")
    assert "a list or a number" in lr["pattern"]


def test_inapplicable_option_is_named_in_the_error(stub_training_spec: dict[str, Any]) -> None:
    rule_by_option = {
        rule["fieldPath"].removeprefix(".config."): rule
        for rule in get_rules(stub_training_spec)
        if "does not apply to" in rule.get("messageExpression", "") and ".config." in rule["fieldPath"]
    }
    # CEL cannot read alphaLr, tau and lr, since each accepts several types.
    assert sorted(rule_by_option) == ["bcIters", "gradClip", "in"]
    assert "self.algorithm in ['CQL', 'IQL']" in rule_by_option["bcIters"]["rule"]
    assert "has(self.config.__in__)" in rule_by_option["in"]["rule"]


def run_defining_fields(definition: dict[str, Any]) -> set[str]:
    return {
        rule["message"].split(" ")[0]
        for rule in get_rules(get_spec_schema(definition))
        if rule.get("message", "").endswith("it changes only with a higher revision")
    }


def test_run_defining_fields_of_recording_change_only_with_the_revision() -> None:
    assert run_defining_fields(custom_resource_definitions(STUB_SCHEMAS)["offlinerecordings"]) == {
        "environment",
        "policy.train.algorithm",
        "policy.train.config",
        "policy.train.model",
        "policy.train.sampler",
        "policy.train.initialCheckpoint",
        "policy.train.stop",
        "policy.train.evaluation",
        "policy.checkpoint",
        "policy.trainingRef",
        "policy.random",
        "policy.explore",
        "duration",
        "runners.envsPerRunner",
        "output.path",
        "output.format",
        "output.encoding",
        "output.maxRowsPerFile",
        "output.maxFileSize",
        "output.compression",
        "output.compressColumns",
        "output.recurrentStates",
        "seed",
    }


def test_run_defining_fields_of_training_change_only_with_the_revision() -> None:
    paths = run_defining_fields(custom_resource_definitions(STUB_SCHEMAS)["offlinetrainings"])
    assert {"algorithm", "config", "model", "input", "seed", "checkpoint.path"} <= paths
    sections = {"stop", "evaluation", "cluster", "runPolicy", "learners", "checkpoint", "pipeline"}
    assert not sections & paths
    assert not {"suspend", "revision", "checkpoint.every", "pipeline.prefetchBatches"} & paths


def test_transition_rules_compare_only_set_fields(stub_training_spec: dict[str, Any]) -> None:
    rule_by_field = {
        rule.get("message", "").split(" ")[0]: rule["rule"] for rule in get_rules(stub_training_spec)
    }
    assert rule_by_field["seed"] == "self.revision > oldSelf.revision || self.seed == oldSelf.seed"
    is_set, was_set = "has(self.initialCheckpoint)", "has(oldSelf.initialCheckpoint)"
    is_equal = "self.initialCheckpoint == oldSelf.initialCheckpoint"
    assert rule_by_field["initialCheckpoint"] == (
        f"self.revision > oldSelf.revision || (({is_set}) ? ({was_set}) && {is_equal} : !({was_set}))"
    )


def test_rules_name_fields_that_exist(definition: dict[str, Any]) -> None:
    for path, node in iterate_nodes(get_root_schema(definition)):
        for rule in get_rules(node):
            for name in re.findall(r"\b(?:self|oldSelf)\.(\w+)\b(?!\()", rule["rule"]):
                assert name in node.get("properties", {}), (path, rule["rule"])


class Leaf(BaseModel):
    """A leaf."""

    size: float = Field(default=1.0, gt=0)


class Part(BaseModel):
    """A part."""

    leaf: Leaf = Field(default=Leaf(), description="The\nleaf.")
    leaves: list[Leaf] = []
    names: dict[str, str] = {}
    anything: object = None
    optional_leaf: Leaf | None = None


def test_structural_schema_of_a_model() -> None:
    leaf = {
        "type": "object",
        "properties": {"size": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "default": 1.0}},
    }
    assert to_structural(Part.model_json_schema())["properties"] == {
        "leaf": {**leaf, "description": "The leaf.", "default": {}},
        "leaves": {
            "type": "array",
            "maxItems": 64,
            "items": {**leaf, "description": "A leaf."},
            "x-kubernetes-list-type": "atomic",
        },
        "names": {
            "type": "object",
            "maxProperties": 64,
            "additionalProperties": {"type": "string", "maxLength": 1024},
        },
        "anything": {OPEN: True},
        "optional_leaf": {**leaf, "description": "A leaf."},
    }


def test_default_objects_pass_their_rules_before_inner_defaults_are_set(definition: dict[str, Any]) -> None:
    """The API server checks the rules of a default object before it sets the defaults within."""
    num_checks = 0
    for schema in iterate_schemas(get_root_schema(definition)):
        default = schema.get("default")
        rules = [rule["rule"] for rule in schema.get("x-kubernetes-validations", ())]
        for rule in rules if isinstance(default, dict) else ():
            environment = celpy.Environment()
            program = environment.program(environment.compile(rule))
            assert program.evaluate({"self": celpy.json_to_cel(default)}), rule
            num_checks += 1
    assert num_checks


def iterate_schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    items = schema.get("items")
    for child in (*schema.get("properties", {}).values(), *([items] if isinstance(items, dict) else [])):
        yield from iterate_schemas(child)
