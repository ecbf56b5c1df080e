"""docs/design.md matches the code: walks, packages, and unique class names."""

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
INTERFACES = {"formats/arrow/layout.py": "formats/layouts.py", "algorithms/bc.py": "learn/algorithm.py"}
"""File -> interface or table through which other files use it."""


def read_walk(walk: str) -> tuple[int, list[str]]:
    """Return the number of files that a walk states, and the files that it names outside its last brackets."""
    text = re.search(rf"\*\*{re.escape(walk)}\*\*(.*?)\n\n", DESIGN, re.DOTALL)[1].partition(". (")[0]
    return int(re.search(r"passes (\d+) files", text)[1]), re.findall(r"`([\w/]+\.py)`", text)


@cache
def imported_files(package: str, file: str) -> set[str]:
    """Return the files of a package that a file imports from, also through re-exports of a folder."""
    files: set[str] = set()
    root = PACKAGES[package]
    for node in ast.walk(ast.parse((root / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
            path = Path(*node.module.split(".")[1:])
            names = {alias.name for alias in node.names}
            files |= {str(path.with_suffix(".py"))} if (root / path).with_suffix(".py").exists() else set()
            files |= {str(path / f"{name}.py") for name in names if (root / path / f"{name}.py").exists()}
            package_file = root / path / "__init__.py"
            if package_file.exists() and str(path / "__init__.py") != file:
                for reexport in ast.parse(package_file.read_text()).body:
                    if isinstance(reexport, ast.ImportFrom) and names & {
                        alias.name for alias in reexport.names
                    }:
                        files.add(str(Path(*reexport.module.split(".")[1:]).with_suffix(".py")))
    return files


@pytest.mark.parametrize("walk", WALKS)
def test_walk_follows_imports(walk):
    """Each file imports, or is imported by, an earlier file of the walk."""
    package, max_files = WALKS[walk]
    count, files = read_walk(walk)
    assert count == len(files) == len(set(files)) <= max_files
    assert [file for file in files if not (PACKAGES[package] / file).is_file()] == []
    for index, file in enumerate(files[1:], 1):
        interface = INTERFACES.get(file, file)
        imports = imported_files(package, file)
        assert interface == file or interface in imports or file in imported_files(package, interface)
        assert any(
            interface in imported_files(package, earlier) or earlier in imports for earlier in files[:index]
        ), file


def test_class_names_are_unique():
    counts = Counter(
        node.name
        for root in PACKAGES.values()
        for file in root.rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in counts.items() if count > 1] == []


def test_training_calls_files_of_first_walk(tmp_path, walks):
    root, called_files = str(PACKAGES["hindcast"]) + "/", set()

    def record_call(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            called_files.add(frame.f_code.co_filename.removeprefix(root))

    resource = training(tmp_path, walks, pipeline={"residency": "Streaming"}, stop={"iterations": 1})
    threading.setprofile(record_call)
    sys.setprofile(record_call)
    try:
        train(resource)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert set(read_walk("From Parquet to the loss")[1]) <= called_files


def test_every_package_is_described():
    packages = {path.stem for path in PACKAGES["hindcast"].iterdir() if not path.name.startswith("_")}
    assert {package for package in packages if f"`{package}`" not in DESIGN} == set()
