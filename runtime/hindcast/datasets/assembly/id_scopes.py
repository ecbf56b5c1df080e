"""Advice for files with the same ids of episodes: what counts its own episodes, a file, a folder or a split."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Final

_FILE_ADVICE: Final = "if each file counts its own episodes, set prepare.episodes to File"
_SEPARATE_INPUTS: Final = "name each as a separate input"
SCOPE_ADVICE: Final = f"{_FILE_ADVICE}; if each folder or split does, {_SEPARATE_INPUTS}"
"""Advice where only ids say that episodes continue in another file."""
_SPLIT: Final = re.compile(r"(?:\w+=)?(?:train|test|val|eval|dev)[a-z]*", re.IGNORECASE)
"""The beginning of a name that tools give a split of a dataset, such as `train-00000-of-00002.parquet`."""


def describe_id_scopes(path: str, other_path: str) -> str:
    """Return advice, as a clause, for two files that hold different episodes with the same id.

    A file of a split may continue an episode of the split's last file, so that only the splits are separate.
    """
    parts, other_parts = path.split("/"), other_path.split("/")
    index = next(
        (i for i, (part, other_part) in enumerate(zip_longest(parts, other_parts)) if part != other_part), 0
    )
    scopes = [_name_scope(parts, index), _name_scope(other_parts, index)]
    if path == other_path or None in scopes or scopes[0] == scopes[1]:
        return _FILE_ADVICE
    return f"if {scopes[0]} and {scopes[1]} count their own episodes, {_SEPARATE_INPUTS}"


def _name_scope(parts: list[str], index: int) -> str | None:
    """Return the folder, or a pattern for the files of a split, in which a path differs; None for another file."""
    if index < len(parts) - 1:
        return "/".join(parts[: index + 1])
    match = _SPLIT.match(parts[-1])
    return None if match is None else "/".join([*parts[:-1], f"{match[0]}*"])
