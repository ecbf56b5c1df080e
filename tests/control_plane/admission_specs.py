"""Helpers of the admission tests: the nodes of the CRDs' schemas, and specs with a value at a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from api_server import Object, plural
from resource_examples import SPECS, merge_change

CRDS = Path(__file__).parents[2] / "crds"

# Path of a node -> the change of the small valid spec without which every value at the node would be refused.
REQUIRED_CONTEXT: dict[str, Object] = {
    ".policy.train": {"policy": {"random": None, "train": {"stop": {"timesteps": 1000}}}},
    ".policy.checkpoint": {"policy": {"random": None}},
    ".policy.trainingRef": {"policy": {"random": None}},
    ".duration.timesteps": {"duration": {"episodes": None}},
    ".cluster.env[].valueFrom": {"cluster": {"env": [{"name": "A"}]}},
    ".input[].recordingRef": {"input": [{"path": None}]},
    ".input[].sampler": {
        "algorithm": "DQN",
        "input": [{"path": None}],
        "stop": {"epochs": None, "updates": 5},
    },
    ".policy.train.sampler": {"policy": {"train": {"algorithm": "SAC"}}},
}

FieldPath = tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """A place in a kind's spec: `path` holds field names, `[]` for entries of a list, `{}` for values of a mapping."""

    kind: str
    path: FieldPath
    schema: Object

    @property
    def dotted_path(self) -> str:
        return "".join(name if name == "[]" else f".{name}" for name in self.path)

    @property
    def field(self) -> str:
        """The path as the API server writes it in messages."""
        return "spec" + self.dotted_path.replace("[]", "[0]")


def load_crd(kind: str) -> Object:
    crd: Object = YAML(typ="safe", pure=True).load(CRDS / f"hindcast.dev_{plural(kind)}.yaml")
    return crd


def load_schema(kind: str) -> Object:
    loaded_schema: Object = load_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return loaded_schema


def walk_nodes(kind: str) -> Iterator[Node]:
    """Yield every place in the spec that the schema describes, the spec itself first."""
    yield from _descendants(Node(kind, (), load_schema(kind)["properties"]["spec"]))


def _descendants(node: Node) -> Iterator[Node]:
    yield node
    for name, child_schema in node.schema.get("properties", {}).items():
        yield from _descendants(Node(node.kind, (*node.path, name), child_schema))
    for key, name in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(node.schema.get(key), dict):
            yield from _descendants(Node(node.kind, (*node.path, name), node.schema[key]))


def spec_with_value(node: Node, value: Any) -> Object:
    """Return the kind's small valid spec with a value at a node, and with the context that the node requires."""
    spec = SPECS[node.kind]
    for prefix, context in REQUIRED_CONTEXT.items():
        if node.dotted_path.startswith(prefix):
            spec = merge_change(spec, context)
    for name in reversed(node.path):
        value = [value] if name == "[]" else {"key" if name == "{}" else name: value}
    result: Object = merge_change(spec, value)
    return result
