"""docs/install-cluster.md on a real API server: its commands work, in their order.

The second word after the backticks of a block tells where it can run: `cluster`, with an API server; `node`, in a
cluster that runs pods (tests/e2e do the same with their own images); `kind`, on a machine with kind; `never`, only with
something that the reader has.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_server import ApiServer
from chart_helm import ROOT, tool
from hindcast_operator.planning import Reason

PAGE = ROOT / "docs" / "install-cluster.md"
TEXT = PAGE.read_text()
BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Without nodes nothing becomes ready, so --wait is dropped. The CRDs exist before the release, so it takes them over.
HELM = """
helm() {
  local words=()
  for word in "$@"; do [ "$word" = --wait ] || words+=("$word"); done
  case $1 in install | upgrade) words+=(--take-ownership) ;; esac
  command helm "${words[@]}"
}
"""


def find_blocks(where: str) -> list[str]:
    return [code for language, place, code in BLOCK.findall(TEXT) if language == "bash" and place == where]


@pytest.fixture
def folder(api: ApiServer, tmp_path: Path) -> Iterator[Path]:
    """Prepare a folder with the repository and the files that the page tells to write; restore the CRDs afterwards."""
    for name in ("charts", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for _, _, code in BLOCK.findall(TEXT):
        if file_comment := re.match(r"#\s*(\S+\.yaml)", code):
            (tmp_path / file_comment[1]).write_text(code)
    yield tmp_path
    uninstall = "helm uninstall hindcast --namespace hindcast-system --ignore-not-found"
    delete = (
        "kubectl delete --ignore-not-found namespace/team-a secret/storage-credentials pvc/data --wait=false"
    )
    subprocess.run(["bash", "-c", f"{uninstall}; {delete}"], check=False)
    api.apply_crds(sorted((ROOT / "crds").glob("*.yaml")))


@pytest.mark.alone
def test_commands_of_page_work_in_order(folder: Path) -> None:
    for program in ("helm", "kubectl"):
        tool(program)
    script = "\n".join(
        ["set -euo pipefail", HELM, *(f"echo '## {n}'\n{b}" for n, b in enumerate(find_blocks("cluster")))]
    )
    process = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=os.environ, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, f"{process.stdout[-3000:]}\n{process.stderr[-3000:]}"
    outputs = re.split(r"^## \d+\n", process.stdout, flags=re.MULTILINE)[1:]
    assert [word for word in outputs[find_block_index("auth can-i")].split() if word in ("yes", "no")] == [
        "yes",
        "no",
    ]
    for command in ("kubectl apply", "helm uninstall"):
        assert {"cartpole-expert", "cartpole-bc"} <= set(
            re.findall(r"cartpole-\w+", outputs[find_block_index(command)])
        )
    assert outputs[-1].count("deleted") == 2


def find_block_index(command: str) -> int:
    (number,) = [number for number, block in enumerate(find_blocks("cluster")) if command in block]
    return number


def test_every_block_names_where_it_runs() -> None:
    block_types = {(language, where) for language, where, _ in BLOCK.findall(TEXT)}
    assert block_types == {
        *(("bash", where) for where in ("", "cluster", "node", "kind", "never")),
        ("yaml", ""),
    }


def test_kind_block_matches_e2e_script() -> None:
    (code,) = find_blocks("kind")
    script = (ROOT / "tools" / "e2e.sh").read_text()
    version = re.search(r"^KUBERAY_VERSION=(\S+)", script, re.MULTILINE)
    charts = re.search(r"^KUBERAY_CHARTS=(\S+)", script, re.MULTILINE)
    assert version and f"--version {version[1]}" in code
    assert charts and f"--repo {charts[1]}" in code
    project = re.search(r'^version = "(\S+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project and set(re.findall(r"hindcast-\w+:(\d\S+)", TEXT)) == {project[1]}
    assert "\nimages:" in (ROOT / "Makefile").read_text()


def test_reasons_and_links_exist() -> None:
    table = TEXT.split("## Troubleshooting")[1]
    reason_names = {
        word
        for row in re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", row)
    }
    assert len(reason_names) > 5
    assert reason_names <= {reason.value for reason in Reason}
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT):
        assert target.startswith("https://") or (PAGE.parent / target).exists(), target
