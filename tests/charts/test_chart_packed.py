"""The chart as a release packs it, with both images by digest, and as users install it from a registry."""

import shutil
import subprocess
from pathlib import Path

import pytest

from chart_helm import CLUSTER_VERSION, ROOT, tool
from oci_registry import serve_registry

OPERATOR_DIGEST, RUNTIME_DIGEST = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("helm", ["helm", "helm4"])
def test_packed_chart_is_installed_from_a_registry_with_images_by_digest(tmp_path: Path, helm: str) -> None:
    if helm == "helm4" and shutil.which(helm) is None:
        pytest.skip("helm4 is not installed")
    program = tool(helm)
    run(ROOT / "tools/pack-chart.sh", "registry.example/team", OPERATOR_DIGEST, RUNTIME_DIGEST, tmp_path)
    (chart,) = tmp_path.glob("hindcast-*.tgz")
    with serve_registry(tmp_path / "registry") as registry:
        source = f"oci://{registry}/charts/hindcast"
        run(program, "push", chart, source.rpartition("/")[0], "--plain-http")
        template_command = (program, "template", "hindcast", source, "--plain-http", "--namespace", "system")
        manifests = run(*template_command, "--kube-version", CLUSTER_VERSION)
        metadata = run(program, "show", "chart", source, "--plain-http")
    assert f'image: "registry.example/team/hindcast-operator@{OPERATOR_DIGEST}"' in manifests
    assert f"registry.example/team/hindcast-runtime@{RUNTIME_DIGEST}" in manifests
    assert "hindcast-operator:" not in metadata and OPERATOR_DIGEST in metadata
