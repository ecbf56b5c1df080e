"""The chart as helm renders it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

Object = dict[str, Any]

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "hindcast"
CLUSTER_VERSION = "1.34.0"


def tool(name: str) -> str:
    """Return the path of a program; without it, skip the test, or fail if a cluster is required."""
    path = shutil.which(name)
    if path is None:
        missing = pytest.fail if os.environ.get("HINDCAST_REQUIRE_CLUSTER") == "1" else pytest.skip
        missing(f"{name} is not installed: the chart is not rendered")
    return path


def helm(*arguments: str, values: Object | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm with these values; return its result even if it fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values or {}, file)
        file.flush()
        return subprocess.run(
            [tool("helm"), *arguments, "--values", file.name], capture_output=True, text=True, check=False
        )


def refusal(values: Object) -> str:
    """Return helm's message about values that it refuses."""
    process = _template(values, "system")
    assert process.returncode != 0, "helm took these values"
    return process.stderr


class RenderedChart:
    """The objects of a release, by kind and name."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.objects: list[Object] = [o for o in YAML(typ="safe", pure=True).load_all(text) if o]

    def all(self, kind: str) -> list[Object]:
        return [document for document in self.objects if document["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Object:
        matches = [o for o in self.all(kind) if name in (None, o["metadata"]["name"])]
        assert len(matches) == 1, f"{kind} {name or ''}: {[o['metadata']['name'] for o in self.all(kind)]}"
        return matches[0]

    @property
    def pod(self) -> Object:
        """Spec of the operator's pods."""
        spec: Object = self.one("Deployment")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        (container,) = self.pod["containers"]
        spec: Object = container
        return spec


def render(values: Object | None = None, namespace: str = "system") -> RenderedChart:
    """Return the objects that `helm install hindcast` would create in the namespace."""
    return _render_cached(json.dumps(values or {}), namespace)


@cache
def _render_cached(values: str, namespace: str) -> RenderedChart:
    process = _template(json.loads(values), namespace)
    assert process.returncode == 0, process.stderr
    return RenderedChart(process.stdout)


def _template(values: Object, namespace: str) -> subprocess.CompletedProcess[str]:
    place = ("--namespace", namespace, "--kube-version", CLUSTER_VERSION)
    return helm("template", "hindcast", str(CHART), *place, values=values)
