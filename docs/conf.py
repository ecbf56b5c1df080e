"""Settings of Sphinx for the documentation site: `make site` builds it into `build/site`.

The pages are Markdown that also reads well in a repository's browser; `index.md` gives them their order. A link to a
file outside of `docs` becomes a link to the repository in HINDCAST_REPOSITORY, the address of its files at a commit,
and commands name that repository. Without it, such a link becomes its text.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

_ROOT = Path(__file__).parents[1]
_REPOSITORY = os.environ.get("HINDCAST_REPOSITORY", "")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#:]+)(?P<anchor>#[^)]*)?\)")
_ANCHOR = re.compile(r'^<a id="([^"]+)"></a>', re.MULTILINE)
"""HTML's anchor, as in `reference.md`; Sphinx knows only `(name)=`."""

project = "Hindcast"
version = release = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["conf.py", "gitops"]
myst_heading_anchors = 6
nitpicky = True
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"Hindcast {version}"
html_static_path: list[str] = []


def _replace_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Begin the first page with the README, and replace HTML's anchors, links to files, and file names of pages."""
    folder, text = (Path(app.srcdir) / page).parent, source[0]
    if page == "index":
        text = (_ROOT / "README.md").read_text().replace("](docs/", "](") + text

    def replace(match: re.Match[str]) -> str:
        path = (folder / match["target"]).resolve()
        if path.is_file() and path.is_relative_to(app.srcdir):
            # The site shows a page's title where the repository shows its file name.
            return (
                f"[]({match['target']}{match['anchor'] or ''})" if match["text"].endswith(".md") else match[0]
            )
        path = path if path.exists() else _ROOT / match["target"]
        if not path.exists():
            return match[0]  # Sphinx reports it
        if not _REPOSITORY:
            return match["text"]
        return f"[{match['text']}]({_REPOSITORY}/{path.relative_to(_ROOT)}{match['anchor'] or ''})"

    if _REPOSITORY:
        address, _, commit = _REPOSITORY.partition("/blob/")
        text = text.replace("git clone URL ", f"git clone {address} ")
        text = text.replace("git+URL@COMMIT", f"git+{address}@{commit}")
    source[0] = _ANCHOR.sub(r"(\1)=\n", _LINK.sub(replace, text))


def setup(app: Sphinx) -> None:
    """Connect the changes of pages."""
    app.connect("source-read", _replace_links)
