"""Generate the table of values in the chart's README from values.yaml and the `# --` comments above each value."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

CHART = Path("charts/hindcast")
README = CHART / "README.md"
BEGIN, END = "<!-- values: written by `make crds` from values.yaml -->", "<!-- end of values -->"


def make_readme(root: Path) -> str:
    """Return the chart's README below `root`, with its table regenerated."""
    text = (root / CHART / "values.yaml").read_text(encoding="utf-8")
    values = YAML(typ="safe", pure=True).load(text)
    rows = [
        f"| `{'.'.join(path)}` | `{json.dumps(_get_value(values, path))}` | {meaning} |"
        for path, meaning in described_values(text)
    ]
    head, _, remainder = (root / README).read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = remainder.partition(END)
    table = "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}"


def described_values(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield path and meaning of each value that has a `# --` comment."""
    section, meaning = "", ""
    for line in text.splitlines():
        stripped_line = line.strip()
        if stripped_line.startswith("# -- "):
            meaning = stripped_line.removeprefix("# -- ")
        elif stripped_line.startswith("#"):
            meaning += f" {stripped_line.lstrip('# ')}" if meaning else ""
        elif ":" in stripped_line:
            key = stripped_line.split(":")[0]
            if not line.startswith(" "):
                section = key
            if meaning:
                yield (key,) if key == section else (section, key), meaning.replace("|", "\\|")
            meaning = ""


def _get_value(values: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        values = values[key]
    return values
