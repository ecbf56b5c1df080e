"""The CRDs as the API server wants them. (That it takes them is seen against a real one.)"""

import json
import re
from collections.abc import Iterator
from typing import Any

import celpy
import pytest
from pydantic import BaseModel, Field

from hindcast.api import options
from hindcast.api.crd import custom_resource_definitions
from hindcast.api.structural import OPEN, structural

STUB: dict[str, Any] = {
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


def version(definition: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition["spec"]["versions"][0]
    return found


def root(definition: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = version(definition)["schema"]["openAPIV3Schema"]
    return found


@pytest.fixture(params=PLURALS)
def definition(request: pytest.FixtureRequest) -> dict[str, Any]:
    return custom_resource_definitions(options.schemas())[request.param]


@pytest.fixture
def stub_spec() -> dict[str, Any]:
    spec: dict[str, Any] = root(custom_resource_definitions(STUB)["offlinetrainings"])["properties"]["spec"]
    return spec


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def rules(schema: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = schema.get("x-kubernetes-validations", [])
    return found


def test_the_schema_is_structural(definition: dict[str, Any]) -> None:
    for path, node in nodes(root(definition)):
        assert not {"$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "title"} & set(node), path
        assert node.get("type") or node.get(OPEN) or node.get("x-kubernetes-int-or-string"), path
        assert not ("additionalProperties" in node and "properties" in node), path
        assert (
            not isinstance(node.get("exclusiveMinimum"), float | int) or node["exclusiveMinimum"] is True
        ), path


def test_everything_is_bounded(definition: dict[str, Any]) -> None:
    limits = {"string": "maxLength", "array": "maxItems"}
    for path, node in nodes(root(definition)["properties"]["spec"]):
        if node.get("type") in limits and "enum" not in node:
            assert limits[node["type"]] in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


def test_it_fits_into_an_annotation(definition: dict[str, Any]) -> None:
    assert len(json.dumps(definition)) < 256 * 1024


def test_every_field_is_explained(definition: dict[str, Any]) -> None:
    unexplained = [
        path
        for path, node in nodes(root(definition))
        if re.search(r"\.\w+$", path) and not node.get("description")
    ]
    assert unexplained == [".apiVersion", ".kind", ".metadata"]


def test_a_fresh_object_does_not_read_as_finished(definition: dict[str, Any]) -> None:
    assert version(definition)["subresources"] == {"status": {}}
    assert root(definition)["properties"]["status"]["default"] == {"observedGeneration": -1}


def test_printer_columns(definition: dict[str, Any]) -> None:
    columns = version(definition)["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    wide = [column["name"] for column in columns if column.get("priority")]
    assert shown == ["State", "Reason", "Algorithm", "Progress", "Return", "Attempt", "Age"]
    assert wide[0] == "RayJob"
    assert wide[-1] == "Message"
    known = {path for path, _ in nodes(root(definition))}
    for column in columns:
        path = re.sub(r"\[.*?\](?=\.)", "[]", column["jsonPath"])
        assert path in known | {".metadata.creationTimestamp"}


def test_selectable_fields_are_fields_of_one_value(definition: dict[str, Any]) -> None:
    known = dict(nodes(root(definition)))
    paths = [field["jsonPath"] for field in version(definition)["selectableFields"]]
    assert paths[:2] == [".status.state", ".spec.suspend"]
    assert [known[path]["type"] for path in paths] == ["string", "boolean", "string", "string"]


def test_lists_with_keys_are_merged_by_them_and_others_as_a_whole_or_as_sets(
    definition: dict[str, Any],
) -> None:
    lists = {
        re.sub(r"\[\]$", "", path): node
        for path, node in nodes(root(definition))
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


def test_enums_are_in_pascal_case_but_for_names_of_others(definition: dict[str, Any]) -> None:
    ours = {
        path: [word for word in node["enum"] if not re.fullmatch(r"[A-Z0-9][A-Za-z0-9]*", word)]
        for path, node in nodes(root(definition))
        if "enum" in node
    }
    others = {path.rsplit(".", 1)[-1].strip("[]") for path, words in ours.items() if words}
    names_of_others = {
        "compression",
        "convActivation",
        "convPadding",
        "device",
        "estimates",
        "fcnetActivation",
    }
    assert others <= names_of_others | {"medium", "op"}


def test_descriptions_tell_the_defaults_of_fields(definition: dict[str, Any]) -> None:
    untold = [
        path
        for path, node in nodes(root(definition))
        if path.startswith(".spec.")
        and "default" in node
        and "properties" not in node
        and "Default:" not in node["description"]
    ]
    assert untold == []
    spec = root(definition)["properties"]["spec"]["properties"]
    assert spec["seed"]["description"].endswith(" Default: 0.")
    assert spec["runPolicy"]["properties"]["backoffLimit"]["description"].endswith(" Default: 3.")


def test_options_have_no_defaults_in_the_schema(definition: dict[str, Any]) -> None:
    configs = [node for path, node in nodes(root(definition)) if path.endswith(".config")]
    assert len(configs) == 1
    assert all("default" not in node for _, node in nodes(configs[0]))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("minQWeight", "Default: CQL 5, DiscreteCQL 1."),
        ("tau", "Default: 0.005."),
        ("targetEntropy", "Default: null."),
        ("gradClipBy", "Default: GlobalNorm."),
        ("epsilon", "Default: [[0, 1], [10000, 0.05]]."),
    ],
)
def test_descriptions_tell_the_defaults_of_options(option: str, said: str) -> None:
    spec = root(custom_resource_definitions(options.schemas())["offlinetrainings"])["properties"]["spec"]
    assert spec["properties"]["config"]["properties"][option]["description"].endswith(f" {said}")


def test_only_what_says_something_is_filled_in() -> None:
    spec = root(custom_resource_definitions(STUB)["offlinetrainings"])["properties"]["spec"]["properties"]
    assert spec["seed"]["default"] == 0
    assert spec["pipeline"]["default"] == {}
    assert spec["pipeline"]["properties"]["windowSteps"]["default"] == 2**20
    # Absent and empty are the same, and platform defaults come in later.
    assert "default" not in spec["cluster"]
    assert "default" not in spec["evaluation"]


def test_choices_are_rules() -> None:
    policy = root(custom_resource_definitions(STUB)["offlinerecordings"])["properties"]["spec"]["properties"][
        "policy"
    ]
    (rule,) = rules(policy)
    assert rule["message"] == "exactly one of train, checkpoint, trainingRef, random is needed"
    assert "has(self.trainingRef)" in rule["rule"]


def test_options_are_the_union_of_all_algorithms(stub_spec: dict[str, Any]) -> None:
    config = stub_spec["properties"]["config"]["properties"]
    assert sorted(config) == ["alphaLr", "bcIters", "gradClip", "in", "lr", "tau"]
    # What the algorithms disagree about is left to the loader.
    assert config["bcIters"] == {
        "type": "integer",
        "format": "int64",
        "description": "CQL: Warm-up. IQL: Other. Default: CQL 20000, IQL 10.",
    }
    assert config["tau"][OPEN] is True
    assert "type" not in config["tau"]
    assert config["gradClip"]["nullable"] is True


def test_a_number_or_a_list_refuses_text_by_a_pattern_that_says_so(stub_spec: dict[str, Any]) -> None:
    lr = stub_spec["properties"]["config"]["properties"]["lr"]
    assert lr[OPEN] is True
    assert not re.match(lr["pattern"], "fast")
    assert "a list or a number" in lr["pattern"]


def test_an_inapplicable_option_is_refused_by_name(stub_spec: dict[str, Any]) -> None:
    found = {
        match.group(1): rule
        for rule in rules(stub_spec)
        if (match := re.match(r"'config\.(\w+) does not apply", rule.get("messageExpression", "")))
    }
    # alphaLr and tau have no one type, so CEL cannot see them; lr is no field of IQL, but the same holds.
    assert sorted(found) == ["bcIters", "gradClip", "in"]
    assert "self.algorithm in ['CQL', 'IQL']" in found["bcIters"]["rule"]
    assert "has(self.config.__in__)" in found["in"]["rule"]
    assert "a field of CQL'" in found["gradClip"]["messageExpression"]


def test_unknown_algorithms_and_those_of_the_other_kind_are_refused(stub_spec: dict[str, Any]) -> None:
    (rule,) = [rule for rule in rules(stub_spec) if "algorithm is" in rule.get("messageExpression", "")]
    assert "['BC', 'CQL', 'IQL']" in rule["rule"]
    assert "PPO" not in rule["rule"]


def defining(definition: dict[str, Any]) -> set[str]:
    spec = root(definition)["properties"]["spec"]
    return {
        rule["message"].split(" ")[0]
        for rule in rules(spec)
        if rule.get("message", "").endswith("it changes only with a higher revision")
    }


def test_what_defines_a_recording_changes_only_with_the_revision() -> None:
    assert defining(custom_resource_definitions(STUB)["offlinerecordings"]) == {
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


def test_what_defines_a_training_changes_only_with_the_revision() -> None:
    found = defining(custom_resource_definitions(STUB)["offlinetrainings"])
    assert {"algorithm", "config", "model", "input", "seed", "checkpoint.path"} <= found
    mutable = {
        "stop",
        "evaluation",
        "suspend",
        "revision",
        "cluster",
        "runPolicy",
        "learners",
        "checkpoint",
        "pipeline",
    }
    assert not mutable & found
    assert not {"checkpoint.every", "pipeline.prefetchBatches"} & found


def test_transition_rules_compare_only_what_is_there(stub_spec: dict[str, Any]) -> None:
    by_message = {rule.get("message", "").split(" ")[0]: rule["rule"] for rule in rules(stub_spec)}
    assert by_message["seed"] == "self.revision > oldSelf.revision || self.seed == oldSelf.seed"
    now, before = "has(self.initialCheckpoint)", "has(oldSelf.initialCheckpoint)"
    same = "self.initialCheckpoint == oldSelf.initialCheckpoint"
    assert by_message["initialCheckpoint"] == (
        f"self.revision > oldSelf.revision || (({now}) ? ({before}) && {same} : !({before}))"
    )


def test_rules_name_fields_that_exist(definition: dict[str, Any]) -> None:
    for path, node in nodes(root(definition)):
        for rule in rules(node):
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
    maybe: Leaf | None = None


def test_structural_schema_of_a_model() -> None:
    leaf = {
        "type": "object",
        "properties": {"size": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "default": 1.0}},
    }
    assert structural(Part.model_json_schema())["properties"] == {
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
        "maybe": {**leaf, "description": "A leaf."},
    }


def test_default_objects_pass_their_rules_as_they_are_written(definition: dict[str, Any]) -> None:
    """The API server checks them before it fills in the defaults inside."""
    checked = 0
    for schema in schemas_below(root(definition)):
        default = schema.get("default")
        rules = [rule["rule"] for rule in schema.get("x-kubernetes-validations", ())]
        for rule in rules if isinstance(default, dict) else ():
            environment = celpy.Environment()
            program = environment.program(environment.compile(rule))
            assert program.evaluate({"self": celpy.json_to_cel(default)}), rule
            checked += 1
    assert checked


def schemas_below(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    items = schema.get("items")
    for child in (*schema.get("properties", {}).values(), *([items] if isinstance(items, dict) else [])):
        yield from schemas_below(child)
