"""Generate a table of RLlib's code blocks: those in `examples/reference/`, and those that are not run.

A block's file begins with its heading, the pages that print it and its number there:

    \"\"\"Using cloud storage

    Pages: 2.40, 2026; block 11
    \"\"\"

and a comment `changed: …` precedes each line that differs in more than imports. Blocks that are not run are in
`not_run.toml`.
"""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path("examples/reference")
_HEAD = re.compile(
    r'\A(?:"""|# )(?P<heading>.+?)\n(?:# ?)?\n(?:# )?Pages: (?P<pages>.+); block (?P<number>\d+)\n'
)
_REFUSAL = re.compile(r"^Refused: (.+)$", re.MULTILINE)
_CHANGE = re.compile(r"^ *# changed: (.+(?:\n *# .+)*)", re.MULTILINE)


class Block(NamedTuple):
    """A code block.

    Attributes:
        is_old: whether it is from RLlib's page of 2019.
        number: number of the block on the page.
        heading: heading of its section.
        pages: the pages that print it.
        file: path below the repository; None if it is not run.
        remark: what was changed, or why it is not run and what to write instead.
    """

    is_old: bool
    number: int
    heading: str
    pages: str
    file: Path | None
    remark: str


def read_blocks(root: Path) -> list[Block]:
    """Return all blocks, in the order of the pages."""
    files = [path for path in (root / FOLDER).glob("*/*") if path.suffix in (".py", ".sh")]
    entries = tomllib.loads((root / FOLDER / "not_run.toml").read_text(encoding="utf-8"))["block"]
    all_blocks = [_read_block(path, root) for path in files] + [
        _make_block_not_run(entry) for entry in entries
    ]
    return sorted(all_blocks)


def make_examples_table(root: Path) -> str:
    """Return the blocks as a Markdown table."""
    lines = [
        "| Page | Heading | File | What is changed and why, or why it is not run and what to write |",
        "|---|---|---|---|",
    ]
    for block in read_blocks(root):
        link = f"[{block.file.name}](../{block.file})" if block.file else "not run"
        remark = block.remark.replace("<", "\\<").replace("|", "\\|")
        lines.append(f"| {block.pages} | {block.heading} | {link} | {remark} |")
    return "\n".join(lines)


def _read_block(path: Path, root: Path) -> Block:
    text = path.read_text(encoding="utf-8")
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"{path}: it does not begin with its heading, pages and number")
    changes = [" ".join(change.replace("#", " ").split()) for change in _CHANGE.findall(text)]
    refusals = [f"refused, as it should be: “{message}”" for message in _REFUSAL.findall(text)]
    remark = " · ".join(refusals + changes) or "unchanged"
    pages, file = head["pages"], path.relative_to(root)
    return Block("2019" in pages, int(head["number"]), head["heading"], pages, file, remark)


def _make_block_not_run(entry: dict[str, str]) -> Block:
    remark = f"{entry['why']} {entry.get('instead', '')}".strip()
    return Block(
        "2019" in entry["pages"], int(entry["block"]), entry["heading"], entry["pages"], None, remark
    )
