"""docs/design.md says what is true of the code: the walks through it, its modules, and one thing for a name."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from support import train, training

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "docs/design.md").read_text()
PACKAGES = {"hindcast": ROOT / "runtime/hindcast", "hindcast_operator": ROOT / "operator/hindcast_operator"}
WALKS = {
    "From Parquet to the loss": ("hindcast", 15),
    "From `kubectl apply` to a RayJob": ("hindcast_operator", 20),
}
BEHIND = {"formats/arrow/layout.py": "formats/layouts.py", "algorithms/bc.py": "learn/algorithm.py"}
"""Files that others only know by an interface or a table."""


def files_of(walk: str) -> tuple[int, list[str]]:
    """How many files a walk says it passes, and those that it names; a sentence in brackets names others."""
    text = re.search(rf"\*\*{re.escape(walk)}\*\*(.*?)\n\n", DESIGN, re.DOTALL)[1].partition(". (")[0]
    return int(re.search(r"passes (\d+) files", text)[1]), re.findall(r"`([\w/]+\.py)`", text)


@cache
def imported(package: str, file: str) -> set[str]:
    """The files of a package that one of its files imports from, also by the name of a folder that passes names on."""
    found: set[str] = set()
    root = PACKAGES[package]
    for node in ast.walk(ast.parse((root / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
            below = Path(*node.module.split(".")[1:])
            names = {alias.name for alias in node.names}
            found |= {str(below.with_suffix(".py"))} if (root / below).with_suffix(".py").exists() else set()
            found |= {str(below / f"{name}.py") for name in names if (root / below / f"{name}.py").exists()}
            inside = root / below / "__init__.py"
            if inside.exists() and str(below / "__init__.py") != file:
                for passed in ast.parse(inside.read_text()).body:
                    if isinstance(passed, ast.ImportFrom) and names & {alias.name for alias in passed.names}:
                        found.add(str(Path(*passed.module.split(".")[1:]).with_suffix(".py")))
    return found


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_leads_from_file_to_file(walk):
    """Each file imports, or is imported by, the one before it, or an earlier one to which that returns."""
    package, most = WALKS[walk]
    count, files = files_of(walk)
    assert count == len(files) == len(set(files)) <= most
    assert [file for file in files if not (PACKAGES[package] / file).is_file()] == []
    for number, file in enumerate(files[1:], 1):
        known_as = BEHIND.get(file, file)
        asks = imported(package, file)
        assert known_as == file or known_as in asks or file in imported(package, known_as)
        assert any(known_as in imported(package, earlier) or earlier in asks for earlier in files[:number]), (
            file
        )


def test_each_class_has_a_name_of_its_own():
    found = Counter(
        node.name
        for root in PACKAGES.values()
        for file in root.rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in found.items() if count > 1] == []


def test_a_timestep_passes_the_files_of_the_first_walk(tmp_path, walks):
    root, passed = str(PACKAGES["hindcast"]) + "/", set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            passed.add(frame.f_code.co_filename.removeprefix(root))

    resource = training(tmp_path, walks, pipeline={"residency": "Streaming"}, stop={"iterations": 1})
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        train(resource)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert set(files_of("From Parquet to the loss")[1]) <= passed


def test_every_package_and_module_is_described():
    parts = {path.stem for path in PACKAGES["hindcast"].iterdir() if not path.name.startswith("_")}
    assert {part for part in parts if f"`{part}`" not in DESIGN} == set()
