"""Within v1alpha1 the CRDs gain only optional fields: breaking changes since the last release are reported."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from hindcast.api.options import algorithms

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

from crd_changes import compare_folders, find_breaking_changes, read_crds  # noqa: E402

RELEASED_CRDS = Path(__file__).parent / "released"
ALGORITHMS = algorithms("OfflineTraining")
LIST_TYPE = "x-kubernetes-list-type"
Change = Callable[[Any, Any], object]
"""Changes the schema of `spec` in a resource, or the whole `spec` of the CRD: its two arguments, in place."""


@cache
def released_training_crd() -> Any:
    """Read the released CRD of trainings; callers must not change it."""
    return read_crds(RELEASED_CRDS)["offlinetrainings.hindcast.dev"]


def test_crds_do_not_break_the_last_release() -> None:
    assert compare_folders(RELEASED_CRDS, ROOT / "crds") == []


def test_command_fails_if_a_crd_is_removed(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "crd_changes.py"), str(RELEASED_CRDS), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "offlinetrainings.hindcast.dev was removed" in process.stdout.splitlines()


def list_breaking_changes(change: Change) -> list[str]:
    """Return the breaking changes that are reported for a change of the released CRD of trainings."""
    new = copy.deepcopy(released_training_crd())
    version = new["spec"]["versions"][0]
    change(version["schema"]["openAPIV3Schema"]["properties"]["spec"], new["spec"])
    return find_breaking_changes(released_training_crd(), new)


def find_schema(spec: Any, path: str) -> Any:
    for name in path.split("."):
        spec = spec["items"] if name == "[]" else spec["properties"][name]
    return spec


def set_keywords(path: str, **values: Any) -> Change:
    return lambda spec, _: find_schema(spec, path).update(values)


def drop_field(path: str, name: str) -> Change:
    return lambda spec, _: (find_schema(spec, path) if path else spec)["properties"].pop(name)


def add_field(path: str, name: str, schema: Any, required: bool = False) -> Change:
    def change(spec: Any, _: Any) -> None:
        schema_at_path = find_schema(spec, path) if path else spec
        schema_at_path["properties"][name] = schema
        if required:
            schema_at_path["required"] = [*schema_at_path.get("required", ()), name]

    return change


def add_rule(text: str, path: str = "", field_path: str = "") -> Change:
    def change(spec: Any, _: Any) -> None:
        schema_at_path = find_schema(spec, path) if path else spec
        new_rule = {"rule": text, "message": "no"} | ({"fieldPath": field_path} if field_path else {})
        schema_at_path["x-kubernetes-validations"] = [
            *schema_at_path.get("x-kubernetes-validations", ()),
            new_rule,
        ]

    return change


BREAKING_CHANGES: list[tuple[Change, str]] = [
    (drop_field("learners", "gpus"), "spec.learners.gpus: the field was removed"),
    (drop_field("", "evaluation"), "spec.evaluation: the field was removed"),
    (set_keywords("checkpoint", required=["path"]), "spec.checkpoint.path: it is required now"),
    (add_field("", "owner", {"type": "string"}, True), "spec.owner: a new field is required now"),
    (set_keywords("learners.replicas", type="string"), "spec.learners.replicas: its type was integer"),
    (set_keywords("input.[].weight", type="string"), "spec.input.[].weight: its type was number"),
    (
        set_keywords("learners.device", enum=["Auto"]),
        "spec.learners.device: cpu, cuda was allowed, is refused",
    ),
    (set_keywords("cluster.image", enum=["a"]), "spec.cluster.image: anything was allowed"),
    (set_keywords("cluster.image", pattern="^a"), "spec.cluster.image: its pattern was None, is ^a"),
    (set_keywords("cluster.rayVersion", pattern="^2"), "spec.cluster.rayVersion: its pattern was"),
    (set_keywords("learners.replicas", minimum=2), "spec.learners.replicas: its minimum was"),
    (set_keywords("learners.replicas", maximum=4), "spec.learners.replicas: its maximum was"),
    (set_keywords("cluster.image", maxLength=8), "spec.cluster.image: its maxLength was 1024, is 8"),
    (set_keywords("input", maxItems=1), "spec.input: its maxItems was"),
    (set_keywords("cluster.nodeSelector", maxProperties=1), "spec.cluster.nodeSelector: its maxProp"),
    (set_keywords("learners.replicas", exclusiveMinimum=True), "its exclusiveMinimum was None, is True"),
    (set_keywords("cluster.image", format="date"), "spec.cluster.image: its format was None, is date"),
    (set_keywords("seed", default=7), "spec.seed: its default was"),
    (set_keywords("input", **{LIST_TYPE: "set"}), f"spec.input: its {LIST_TYPE}"),
    (lambda s, _: refuse_unknown_fields(s), "spec.cluster.podOverrides.all: took anything, does not now"),
    (add_rule("self.seed < 5"), "spec: a new rule: self.seed < 5"),
    (add_rule("self.size() > 3", "cluster.image"), "spec.cluster.image: a new rule: self.size() > 3"),
    (add_rule("self.seed < 5", field_path=".seed"), "spec: a new rule: self.seed < 5"),
    (add_rule("self.algorithm in ['CQL']"), "a new rule: self.algorithm in ['CQL']"),
    (
        add_rule("(!(has(self.algorithm) && self.algorithm in ['CQL']) || has(self.seed))"),
        "spec: a new rule: (!(has(",
    ),
    (lambda s, _: concern_algorithm(s), "spec: a new rule: (!((has(self.learners)"),
    (lambda _, crd: crd["versions"][0].update(served=False), "version v1alpha1 is no longer served"),
    (lambda _, crd: crd["versions"][0].pop("subresources"), "the subresource status was removed"),
    (lambda _, crd: crd["names"].update(shortNames=["x"]), "names.shortNames was ['otr'], is"),
    (lambda _, crd: crd.update(scope="Cluster"), "scope was Namespaced, is Cluster"),
]


def concern_algorithm(spec: Any) -> None:
    """Let the rule on compiled losses concern BC, too."""
    for rule in spec["x-kubernetes-validations"]:
        if "self.learners.compile" in rule["rule"]:
            rule["rule"] = rule["rule"].replace("self.algorithm in [", "self.algorithm in ['BC', ")


def refuse_unknown_fields(spec: Any) -> None:
    schema = find_schema(spec, "cluster.podOverrides.all")
    del schema["x-kubernetes-preserve-unknown-fields"]


@pytest.mark.parametrize(("change", "line"), BREAKING_CHANGES, ids=[line for _, line in BREAKING_CHANGES])
def test_breaking_change_is_named(change: Change, line: str) -> None:
    (sentence,) = list_breaking_changes(change)
    assert line in sentence
    assert sentence.startswith("OfflineTraining: ")


def test_bound_of_a_type_that_was_refused_breaks_nothing() -> None:
    schema = {"x-kubernetes-preserve-unknown-fields": True, "minItems": 1, "maxProperties": 0}
    change = set_keywords("input.[].schema", additionalProperties=schema)
    assert list_breaking_changes(change) == []


def test_refusing_null_is_a_breaking_change() -> None:
    old, new = copy.deepcopy(released_training_crd()), copy.deepcopy(released_training_crd())
    spec = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    find_schema(spec, "learners.gpus")["nullable"] = True
    assert find_breaking_changes(old, new) == ["OfflineTraining: spec.learners.gpus: null is refused now"]


COMPATIBLE_CHANGES: dict[str, Change] = {
    "nothing": lambda *_: None,
    "optional field": add_field("learners", "spares", {"type": "integer", "default": 0}),
    "wider enum": lambda s, _: find_schema(s, "learners.device")["enum"].append("tpu"),
    "no enum": lambda s, _: find_schema(s, "learners.device").pop("enum"),
    "wider bounds": set_keywords("cluster.image", maxLength=4096, minLength=0),
    "no bounds": lambda s, _: find_schema(s, "cluster.image").pop("maxLength"),
    "description": set_keywords("seed", description="another"),
    "column": lambda _, crd: crd["versions"][0]["additionalPrinterColumns"].pop(),
    "version beside it": lambda _, crd: crd["versions"].append({**crd["versions"][0], "name": "v1"}),
    "short name beside it": lambda _, crd: crd["names"]["shortNames"].append("train"),
    "no rule": lambda s, _: s["x-kubernetes-validations"].pop(),
    "rule of a new field": add_rule(
        "!has(self.config.novel) || self.algorithm in ['MARWIL']", "", ".config.novel"
    ),
    "field of all algorithms so far": add_rule(
        "(!(has(self.config) && has(self.config.lr)) || "
        f"(has(self.algorithm) && self.algorithm in {[*ALGORITHMS, 'Novel']}))",
        "",
        ".config.lr",
    ),
    "rule on a new algorithm": add_rule(
        "(!(has(self.algorithm) && self.algorithm in ['Novel']) || has(self.config.lr))"
    ),
    "rule that concerns fewer algorithms": lambda s, _: exempt_algorithm(s),
    "a schedule instead of a number": set_keywords(
        "input.[].weight", pattern="^none$", maxItems=3, maxProperties=0
    ),
    "a rule or something else": lambda s, _: loosen_rule(s),
    "rule against a field that no release executed": add_rule("!has(self.sampler)", "input.[]"),
    "one field more to choose from": lambda s, _: add_field_to_rule(s),
    "one algorithm more": lambda s, _: add_algorithm_to_rules(s),
}


def loosen_rule(spec: Any) -> None:
    rule = spec["x-kubernetes-validations"][0]
    rule["rule"] = f"({rule['rule']}) || self.seed > 5"


def exempt_algorithm(spec: Any) -> None:
    for rule in spec["x-kubernetes-validations"]:
        rule["rule"] = rule["rule"].replace(
            "!(has(self.algorithm) && self.algorithm in ['BC', ",
            "!(has(self.algorithm) && self.algorithm in ['Novel', ",
        )


def add_field_to_rule(spec: Any) -> None:
    (rule,) = find_schema(spec, "stop")["x-kubernetes-validations"]
    rule["rule"] = rule["rule"].replace("[", "[has(self.another), ")


def add_algorithm_to_rules(spec: Any) -> None:
    for rule in spec["x-kubernetes-validations"]:
        rule["rule"] = rule["rule"].replace("self.algorithm in ['BC'", "self.algorithm in ['BC', 'MARWIL'")


@pytest.mark.parametrize("change", COMPATIBLE_CHANGES.values(), ids=COMPATIBLE_CHANGES)
def test_compatible_change_breaks_nothing(change: Change) -> None:
    assert list_breaking_changes(change) == []


def test_released_crds_are_complete() -> None:
    for file in RELEASED_CRDS.glob("*.yaml"):
        crd = YAML(typ="safe", pure=True).load(file)
        assert crd["spec"]["versions"][0]["name"] == "v1alpha1"
    assert len(list(RELEASED_CRDS.glob("*.yaml"))) == 2
