"""The examples are RLlib's code blocks: they differ from the printed pages in imports, and where a comment says so."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRINTED_PAGES = ROOT / "tests" / "fixtures" / "reference_pages"
FILES = [file for file in (ROOT / "examples" / "reference").glob("*/*") if file.suffix in (".py", ".sh")]
CHANGE_MARK = "# changed: "
IMPORT = re.compile(r"(from [\w.]+ )?import ")
NAME = re.compile(r"[\w.]+( as \w+)?,?")


def find_differing_lines(printed_block: str, example: str) -> list[list[str]]:
    """Return groups of adjacent differing lines: `- ` begins lines of the page, `+ ` lines of the example.

    Indentation, blank lines and comments are not compared, except comments that mark a change.
    """
    groups: list[list[str]] = [[]]
    lines = [
        list(filter(is_compared, map(str.strip, text.splitlines()))) for text in (printed_block, example)
    ]
    for line in difflib.ndiff(*lines, linejunk=None, charjunk=None):
        if line.startswith(("+ ", "- ")):
            groups[-1].append(line)
        elif line.startswith("  ") and groups[-1]:
            groups.append([])
    return [group for group in groups if group]


def is_compared(line: str) -> bool:
    return bool(line) and (not line.startswith("#") or line.startswith(CHANGE_MARK))


def is_import(line: str) -> bool:
    """Return True if a line belongs to an import, which may have names on separate lines."""
    code = line[2:].strip()
    return bool(IMPORT.match(code) or NAME.fullmatch(code) or code == ")")


def remove_heading(code: str) -> str:
    """Return the code without the docstring or the comment at its beginning, which names the page."""
    return re.sub(r'\A(""".*?"""|# .*?\n# Pages.*?\n)', "", code, count=1, flags=re.DOTALL)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_examples_differ_only_in_imports_and_marked_lines(file: Path) -> None:
    printed_block, example = (PRINTED_PAGES / f"{file.stem}.txt").read_text(), file.read_text()
    is_marked_command = file.suffix == ".sh" and CHANGE_MARK in example
    for group in find_differing_lines(*map(remove_heading, (printed_block, example))):
        is_marked = is_marked_command or any(CHANGE_MARK in line for line in group)
        assert is_marked or all(map(is_import, group)), "\n".join(group)


def test_every_printed_block_has_an_example() -> None:
    assert {file.stem for file in PRINTED_PAGES.glob("*.txt")} == {file.stem for file in FILES}
