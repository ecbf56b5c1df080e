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
    """Path of a program; without it the test is skipped, or fails where a cluster is required."""
    found = shutil.which(name)
    if found is None:
        missing = pytest.fail if os.environ.get("HINDCAST_REQUIRE_CLUSTER") == "1" else pytest.skip
        missing(f"{name} is not installed: the chart is not rendered")
    return found


def helm(*arguments: str, values: Object | None = None) -> subprocess.CompletedProcess[str]:
    """helm with these values; its result, whatever it is."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values or {}, file)
        file.flush()
        return subprocess.run(
            [tool("helm"), *arguments, "--values", file.name], capture_output=True, text=True, check=False
        )


def refusal(values: Object) -> str:
    """What helm says of values that it refuses."""
    done = _template(values, "system")
    assert done.returncode != 0, "helm took these values"
    return done.stderr


class RenderedChart:
    """The objects of a release, by kind and name."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.objects: list[Object] = [o for o in YAML(typ="safe", pure=True).load_all(text) if o]

    def all(self, kind: str) -> list[Object]:
        return [found for found in self.objects if found["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Object:
        found = [o for o in self.all(kind) if name in (None, o["metadata"]["name"])]
        assert len(found) == 1, f"{kind} {name or ''}: {[o['metadata']['name'] for o in self.all(kind)]}"
        return found[0]

    @property
    def pod(self) -> Object:
        """Spec of the operator's pods."""
        spec: Object = self.one("Deployment")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        (container,) = self.pod["containers"]
        found: Object = container
        return found


def render(values: Object | None = None, namespace: str = "system") -> RenderedChart:
    """What `helm install hindcast` would make in the namespace."""
    return _rendered(json.dumps(values or {}), namespace)


@cache
def _rendered(values: str, namespace: str) -> RenderedChart:
    done = _template(json.loads(values), namespace)
    assert done.returncode == 0, done.stderr
    return RenderedChart(done.stdout)


def _template(values: Object, namespace: str) -> subprocess.CompletedProcess[str]:
    place = ("--namespace", namespace, "--kube-version", CLUSTER_VERSION)
    return helm("template", "hindcast", str(CHART), *place, values=values)
