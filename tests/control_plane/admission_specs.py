"""What the admission tests share: the CRDs' nodes and rules, small valid specs, and changes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from api_server import Object, plural

API_VERSION = "hindcast.dev/v1alpha1"
KINDS = ("OfflineRecording", "OfflineTraining")
CRDS = Path(__file__).parents[2] / "crds"

SPECS: dict[str, Object] = {
    "OfflineRecording": {
        "environment": {"id": "CartPole-v1"},
        "policy": {"random": {}},
        "duration": {"episodes": 5},
        "output": {"path": "s3://bucket/data"},
    },
    "OfflineTraining": {
        "algorithm": "BC",
        "environment": {"id": "CartPole-v1"},
        "input": [{"path": "s3://bucket/data"}],
        "stop": {"epochs": 1},
    },
}
# What has to stand around a part so that it may be there at all.
AROUND: dict[str, Object] = {
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

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """A part of a kind's spec: `path` holds field names, `[]` for entries of a list, `{}` for values of a mapping."""

    kind: str
    path: Path_
    schema: Object

    @property
    def dotted(self) -> str:
        return "".join(step if step == "[]" else f".{step}" for step in self.path)

    @property
    def field(self) -> str:
        """As the API server names it."""
        return "spec" + self.dotted.replace("[]", "[0]")


def definition(kind: str) -> Object:
    found: Object = YAML(typ="safe", pure=True).load(CRDS / f"hindcast.dev_{plural(kind)}.yaml")
    return found


def schema(kind: str) -> Object:
    found: Object = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def nodes(kind: str) -> Iterator[Node]:
    """Every part of the spec that the schema knows, the spec itself first."""
    yield from _below(Node(kind, (), schema(kind)["properties"]["spec"]))


def _below(node: Node) -> Iterator[Node]:
    yield node
    for name, part in node.schema.get("properties", {}).items():
        yield from _below(Node(node.kind, (*node.path, name), part))
    for key, step in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(node.schema.get(key), dict):
            yield from _below(Node(node.kind, (*node.path, step), node.schema[key]))


def merged(base: Any, change: Any) -> Any:
    """A merge patch, but for lists of one mapping, which are merged too."""
    if isinstance(base, list) and isinstance(change, list) and len(base) == len(change) == 1:
        return [merged(base[0], change[0])]
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    result = dict(base)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def document(kind: str, spec: Object, name: str = "test") -> Object:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def changed(kind: str, change: Object) -> Object:
    """The kind's small valid spec with a change."""
    result: Object = merged(SPECS[kind], change)
    return result


def with_part(node: Node, value: Any) -> Object:
    """The kind's small valid spec with a value at a node."""
    spec = SPECS[node.kind]
    for prefix, around in AROUND.items():
        if node.dotted.startswith(prefix):
            spec = merged(spec, around)
    for step in reversed(node.path):
        value = [value] if step == "[]" else {"key" if step == "{}" else step: value}
    result: Object = merged(spec, value)
    return result
