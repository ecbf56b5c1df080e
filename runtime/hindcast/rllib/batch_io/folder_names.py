"""Names in messages for the temporary folders that hold tables in memory and the batches of readers."""

from __future__ import annotations

import re
from dataclasses import replace

from hindcast.errors import Problem

_names: dict[str, str] = {}
"""Path of a folder or file -> what messages call it."""


def register_name(path: str, name: str) -> None:
    """Register what messages call a folder or file."""
    _names[path] = name


def forget_name(path: str) -> None:
    """Forget the name of a folder, and those of its files."""
    for known_path in [key for key in _names if key == path or key.startswith(f"{path}/")]:
        del _names[known_path]


def name_folders(problem: Problem) -> Problem:
    """Return the problem with names in place of registered paths."""
    for path in sorted(_names, key=len, reverse=True):  # files before their folders
        if path in str(problem):
            problem = replace(
                problem,
                path=_replace_path(problem.path, path),
                episode=_replace_path(problem.episode, path),
                what=_replace_path(problem.what, path),
                remedy=_replace_path(problem.remedy, path),
            )
    return problem


def _replace_path(text: str, path: str) -> str:
    """Replace a path by its name; in the id of an episode, which is its file and number, the number remains."""
    text = re.sub(rf"{re.escape(path)}:(?=\d)", "", text)
    return text.replace(path, _names[path])
