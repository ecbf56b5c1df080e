"""The address of the repository that publishes a release, in package and chart."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from chart_helm import ROOT

REPOSITORY = "https://example.org/team/hindcast"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the files that name the repository."""
    for name in ("README.md", "pyproject.toml", "charts/hindcast/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def stamp(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools/stamp_repository.py", REPOSITORY, "v1.2.3", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_stamped_package_and_chart_name_the_repository(checkout: Path) -> None:
    assert stamp(checkout).returncode == 0
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Homepage"] == REPOSITORY
    assert all(url.startswith(REPOSITORY) for url in project["urls"].values())
    chart = YAML(typ="safe").load(checkout / "charts/hindcast/Chart.yaml")
    assert (chart["home"], chart["sources"]) == (REPOSITORY, [REPOSITORY])


def test_stamped_readme_has_only_absolute_links_to_files_that_exist(checkout: Path) -> None:
    assert stamp(checkout).returncode == 0
    text = (checkout / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert f"{REPOSITORY}/raw/v1.2.3/docs/report.png" in links
    for link in links:
        path = re.fullmatch(rf"{REPOSITORY}/(?:blob|raw)/v1\.2\.3/([^#]+)(?:#.*)?", link)
        assert path is not None, link
        assert (ROOT / path[1]).exists(), link
    assert f"git clone {REPOSITORY} hindcast" in text


def test_second_stamp_fails_and_names_the_file(checkout: Path) -> None:
    stamp(checkout)
    again = stamp(checkout)
    assert again.returncode == 1
    assert "README.md" in again.stderr and "stamped before" in again.stderr
