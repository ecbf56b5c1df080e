"""Render the Helm chart."""

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
        fail_or_skip = pytest.fail if os.environ.get("HINDCAST_REQUIRE_CLUSTER") == "1" else pytest.skip
        fail_or_skip(f"{name} is not installed: the chart is not rendered")
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
    assert process.returncode != 0, "helm accepted these values"
    return process.stderr


class RenderedChart:
    """The objects that a release consists of."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.objects: list[Object] = [
            document for document in YAML(typ="safe", pure=True).load_all(text) if document
        ]

    def find_all(self, kind: str) -> list[Object]:
        return [document for document in self.objects if document["kind"] == kind]

    def find_one(self, kind: str, name: str | None = None) -> Object:
        objects = self.find_all(kind)
        matches = [document for document in objects if name in (None, document["metadata"]["name"])]
        assert len(matches) == 1, (
            f"{kind} {name or ''}: {[document['metadata']['name'] for document in objects]}"
        )
        return matches[0]

    @property
    def pod(self) -> Object:
        """Spec of the operator's pods."""
        spec: Object = self.find_one("Deployment")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        """Spec of the only container of the operator's pods."""
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
    options = ("--namespace", namespace, "--kube-version", CLUSTER_VERSION)
    return helm("template", "hindcast", str(CHART), *options, values=values)
