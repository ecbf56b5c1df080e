"""The chart as a release packs it: with both images by digest."""

import subprocess
from pathlib import Path

from chart_helm import CLUSTER_VERSION, ROOT, tool

OPERATOR, RUNTIME = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def test_packed_chart_renders_with_images_by_digest(tmp_path: Path) -> None:
    helm = tool("helm")
    script = ROOT / "tools/pack-chart.sh"
    subprocess.run(
        [script, "registry.example/team", OPERATOR, RUNTIME, tmp_path], check=True, capture_output=True
    )
    (chart,) = tmp_path.glob("hindcast-*.tgz")
    command = [
        helm,
        "template",
        "hindcast",
        chart,
        "--namespace",
        "system",
        "--kube-version",
        CLUSTER_VERSION,
    ]
    objects = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f'image: "registry.example/team/hindcast-operator@{OPERATOR}"' in objects
    assert f"registry.example/team/hindcast-runtime@{RUNTIME}" in objects
    metadata = subprocess.run(
        [helm, "show", "chart", chart], check=True, capture_output=True, text=True
    ).stdout
    assert "hindcast-operator:" not in metadata and OPERATOR in metadata
