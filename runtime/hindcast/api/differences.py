"""Describe the differences due to which a resource cannot continue a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from hindcast.api.hashing import course_fields
from hindcast.api.recording import OfflineRecording
from hindcast.api.training import OfflineTraining

FREE_FORM_FIELDS: Final = frozenset(
    {"kwargs", "customConfig", "moduleOptions", "preLearnerKwargs", "readOptions"}
)
"""Fields that contain arguments of the user's own code: strings in them may be secret."""
_MAX_VALUE_LENGTH: Final = 60
_MAX_CHANGES: Final = 3

Resource = OfflineRecording | OfflineTraining
Path = tuple[str | int, ...]


def differences(old: Resource, new: Resource) -> str:
    """List the run-defining fields that changed: "spec.model.fcnetHiddens: [8] → [10], spec.seed: 0 → 1".

    The text lists at most three fields and the number of further fields. It is empty if nothing changed. Long values,
    and values that may be secret, are left out. Fields that may change during a run (`stop`, most of `evaluation`) do
    not count, see `course_fields`.
    """
    old_leaves, new_leaves = (
        dict(iterate_leaves(_split_names(course_fields(resource)))) for resource in (old, new)
    )
    paths = [
        path
        for path in dict.fromkeys([*old_leaves, *new_leaves])
        if old_leaves.get(path) != new_leaves.get(path)
    ]
    changes = [
        _change_text(path, _value_text(old, path), _value_text(new, path)) for path in paths[:_MAX_CHANGES]
    ]
    if len(paths) > _MAX_CHANGES:
        changes[-1] += f" and {len(paths) - _MAX_CHANGES} more"
    return ", ".join(changes)


def _split_names(course: dict[str, Any]) -> dict[Path, Any]:
    """Replace the dotted names of `course_fields` by paths."""
    return {tuple(name.split(".")): value for name, value in course.items()}


def iterate_leaves(values: dict[Path, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) of the leaves below the values, through mappings and lists of mappings."""
    for path, value in values.items():
        if isinstance(value, dict) and value:
            yield from iterate_leaves({(*path, name): child for name, child in value.items()})
        elif isinstance(value, list) and value and all(isinstance(child, dict) for child in value):
            yield from iterate_leaves({(*path, index): child for index, child in enumerate(value)})
        else:
            yield path, value


def _value_text(resource: Resource, path: Path) -> str | None:
    """Return the value at a path as text, or None if the value is long or may be secret.

    The text of a value that does not exist is "default" for an option of an algorithm, else "none".
    """
    # From the whole spec: `course_fields` does not contain fields that have their defaults.
    value: Any = resource.spec.model_dump(mode="json", by_alias=True)
    for depth, name in enumerate(path):
        try:
            value = value[name]
        except (KeyError, IndexError, TypeError):
            return "default" if "config" in path[:depth] else "none"
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # The text goes into logs and the status, which more people can read than the arguments of the user's code.
    if len(text) > _MAX_VALUE_LENGTH or (FREE_FORM_FIELDS.intersection(path) and _contains_text(value)):
        return None
    return text


def _contains_text(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_contains_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)


def _change_text(path: Path, old_text: str | None, new_text: str | None) -> str:
    field = "spec" + "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path)
    return field if old_text is None or new_text is None else f"{field}: {old_text} → {new_text}"
