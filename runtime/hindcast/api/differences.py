"""The differences that keep a resource from continuing a run, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from hindcast.api.hashing import course_of
from hindcast.api.recording import OfflineRecording
from hindcast.api.training import OfflineTraining

OPEN: Final = frozenset({"kwargs", "customConfig", "moduleOptions", "preLearnerKwargs", "readOptions"})
"""Fields that hold arguments of the user's own code: texts in them may be secret."""
_LONGEST: Final = 60
_MOST: Final = 3

Resource = OfflineRecording | OfflineTraining
Path = tuple[str | int, ...]


def differences(before: Resource, after: Resource) -> str:
    """List the run-defining fields that changed: "spec.model.fcnetHiddens: [8] → [10], spec.seed: 0 → 1".

    At most three, then the number of the others; empty if nothing changed. Long values, and values that may be secret,
    are left out. Fields that may change during a run (`stop`, `evaluation`) do not count.
    """
    then, now = (dict(_leaves(_nested(course_of(each)))) for each in (before, after))
    paths = [path for path in dict.fromkeys([*then, *now]) if then.get(path) != now.get(path)]
    said = [_change(path, _value(before, path), _value(after, path)) for path in paths[:_MOST]]
    if len(paths) > _MOST:
        said[-1] += f" and {len(paths) - _MOST} more"
    return ", ".join(said)


def _nested(course: dict[str, Any]) -> dict[Path, Any]:
    return {tuple(name.split(".")): value for name, value in course.items()}


def _leaves(values: dict[Path, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves with their paths, through objects and lists of objects."""
    for path, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves({(*path, name): part for name, part in value.items()})
        elif isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
            yield from _leaves({(*path, number): part for number, part in enumerate(value)})
        else:
            yield path, value


def _value(resource: Resource, path: Path) -> str | None:
    """Return the value as text, or None if it is long or may be secret."""
    found: Any = resource.spec.model_dump(mode="json", by_alias=True)
    for place, name in enumerate(path):
        try:
            found = found[name]
        except (KeyError, IndexError, TypeError):
            return "default" if "config" in path[:place] else "none"
    if found is None:
        return "none"
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    if len(text) > _LONGEST or (OPEN.intersection(path) and _holds_text(found)):
        return None
    return text


def _holds_text(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)


def _change(path: Path, then: str | None, now: str | None) -> str:
    place = "spec" + "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path)
    return place if then is None or now is None else f"{place}: {then} → {now}"
