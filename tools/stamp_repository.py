"""Write a repository's address into the package and the chart of a checkout, before a release packs them.

    python tools/stamp_repository.py https://github.com/owner/name v0.1.0 [FOLDER]

The source names no address, because a fork publishes under its own. Links of README, which are relative in the
repository, become absolute for the package index, and its first command clones the repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINKS = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^):#]+)(?P<anchor>#[^)]*)?\)")


def stamp(folder: Path, repository: str, tag: str) -> None:
    """Write the address into the files of a checkout.

    Args:
        folder: root of the checkout; its files are changed.
        repository: address of the repository, such as `https://github.com/owner/name`.
        tag: tag or commit that the links show.
    """

    def absolute(match: re.Match[str]) -> str:
        view = "raw" if match["image"] else "blob"
        address = f"{repository}/{view}/{tag}/{match['target']}{match['anchor'] or ''}"
        return f"{match['image']}[{match['text']}]({address})"

    replace(folder / "README.md", LINKS, absolute)
    replace(folder / "README.md", re.compile(r"git clone URL\b"), f"git clone {repository}")
    urls = {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/{tag}/README.md#documentation",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    lines = "\n".join(f'{name} = "{url}"' for name, url in urls.items())
    replace(
        folder / "pyproject.toml", re.compile(r"(?=\[project\.scripts\])"), f"[project.urls]\n{lines}\n\n"
    )
    chart_lines = f"home: {repository}\nsources: [{repository}]\n"
    replace(
        folder / "charts/hindcast/Chart.yaml", re.compile(r"^(?=annotations:)", re.MULTILINE), chart_lines
    )


def replace(path: Path, pattern: re.Pattern[str], replacement: object) -> None:
    """Replace every match of a pattern in a file; exit if there is none, for example because it is already stamped."""
    text, count = pattern.subn(replacement, path.read_text())  # type: ignore[call-overload]
    if count == 0:
        sys.exit(f"{path} has no {pattern.pattern!r}: it changed, or was stamped before")
    path.write_text(text)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    stamp(Path(*sys.argv[3:]), sys.argv[1], sys.argv[2])
