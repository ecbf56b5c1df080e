"""The documentation site: every page has its place, every link and anchor a target."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://example.org/hindcast/blob/main"


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "--quiet",
            "--fail-on-warning",
            "--keep-going",
            ROOT / "docs",
            tmp_path,
        ],
        env=os.environ | {"HINDCAST_REPOSITORY": REPOSITORY},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    first_page = (tmp_path / "index.html").read_text()
    assert f'href="{REPOSITORY}/CONTRIBUTING.md"' in first_page
    assert 'href="install-cluster.html"' in first_page
    assert "git clone https://example.org/hindcast hindcast" in re.sub("<[^>]+>", "", first_page)
    assert "git+https://example.org/hindcast@main" in re.sub(
        "<[^>]+>", "", (tmp_path / "install.html").read_text()
    )


def test_site_build_with_broken_link_fails(tmp_path: Path) -> None:
    pages = tmp_path / "repository" / "docs"
    pages.mkdir(parents=True)
    for name in ("docs/conf.py", "pyproject.toml"):
        (tmp_path / "repository" / name).write_text((ROOT / name).read_text())
    (tmp_path / "repository" / "README.md").write_text("# Title\n\n[a page](docs/missing.md)\n")
    (pages / "index.md").write_text("\n")
    process = subprocess.run(
        [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", pages, tmp_path / "site"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode != 0
    assert "missing.md" in process.stderr
