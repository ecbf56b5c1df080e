"""The images and the chart as a user installs them: from a registry, by digest.

The nodes must share this machine's network, and Docker must have the operator's image: `make e2e PARTS=release`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_cluster import OPERATOR_IMAGE, RELEASE, SYSTEM_NAMESPACE
from e2e_kube import run

from oci_registry import serve_registry

ROOT = Path(__file__).parents[2]
RUNTIME_DIGEST = "sha256:" + "0" * 64  # no run is started
HELM_PROGRAMS = [program for program in ("helm", "helm4") if shutil.which(program)]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    with serve_registry(tmp_path / "registry") as address:
        yield address


@pytest.mark.parametrize("helm", HELM_PROGRAMS)
def test_operator_runs_from_registry_by_digest(registry: str, tmp_path: Path, helm: str) -> None:
    image = f"{registry}/hindcast-operator"
    run("docker", "tag", OPERATOR_IMAGE, f"{image}:e2e")
    pushed = run("docker", "push", f"{image}:e2e", timeout=300)
    match = re.search(r"digest: (sha256:[0-9a-f]{64})", pushed)
    assert match is not None, pushed
    run(str(ROOT / "tools/pack-chart.sh"), registry, match[1], RUNTIME_DIGEST, str(tmp_path))
    (chart,) = tmp_path.glob("hindcast-*.tgz")
    run(helm, "push", str(chart), f"oci://{registry}/charts", "--plain-http")
    namespace = ("--namespace", SYSTEM_NAMESPACE)
    source = (f"oci://{registry}/charts/hindcast", "--plain-http")
    arguments = ("--create-namespace", "--wait", "--timeout", "180s", "--take-ownership")
    run(helm, "install", RELEASE, *source, *namespace, *arguments, timeout=240)
    try:
        pods = json.loads(run("kubectl", "get", "pods", *namespace, "--output", "json"))["items"]
        assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {f"{image}@{match[1]}"}
        # A node reports an image by its digest and any address that it was pulled from before.
        image_ids = {status["imageID"] for pod in pods for status in pod["status"]["containerStatuses"]}
        assert {image_id.partition("@")[2] for image_id in image_ids} == {match[1]}
    finally:
        run(helm, "uninstall", RELEASE, *namespace, "--wait")
