"""The table of values in the chart's README, from values.yaml and the `# --` comments above each value."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

CHART = Path("charts/hindcast")
README = CHART / "README.md"
BEGIN, END = "<!-- values: written by `make crds` from values.yaml -->", "<!-- end of values -->"


def readme(root: Path) -> str:
    """Return the chart's README below `root`, with its table regenerated."""
    text = (root / CHART / "values.yaml").read_text(encoding="utf-8")
    values = YAML(typ="safe", pure=True).load(text)
    rows = [
        f"| `{'.'.join(path)}` | `{json.dumps(_at(values, path))}` | {meaning} |"
        for path, meaning in described_values(text)
    ]
    head, _, rest = (root / README).read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    table = "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}"


def described_values(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield path and meaning of each value that has a `# --` comment."""
    section, meaning = "", ""
    for line in text.splitlines():
        word = line.strip()
        if word.startswith("# -- "):
            meaning = word.removeprefix("# -- ")
        elif word.startswith("#"):
            meaning += f" {word.lstrip('# ')}" if meaning else ""
        elif ":" in word:
            key = word.split(":")[0]
            if not line.startswith(" "):
                section = key
            if meaning:
                yield (key,) if key == section else (section, key), meaning.replace("|", "\\|")
            meaning = ""


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        values = values[key]
    return values
