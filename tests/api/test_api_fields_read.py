"""Every field of the resources is read by some code, or is in the table of fields without effect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from hindcast.api.recording import OfflineRecordingSpec
from hindcast.api.training import OfflineTrainingSpec
from hindcast.run.ineffective_fields import INEFFECTIVE_EVERYWHERE

ROOT = Path(__file__).parents[2]


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation (a type) names, also within containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def leaf_fields(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path by YAML names, Python name) of all leaves of a model."""
    for name, field in model.model_fields.items():
        field_path = f"{path}.{field.alias or name}" if path else str(field.alias or name)
        # A space, which may contain spaces, counts as one field.
        children = [
            child for child in models_in(field.annotation) if not child.__module__.endswith(".spaces")
        ]
        if not any(child.model_fields for child in children):
            yield field_path, name
        for child in children:
            yield from leaf_fields(child, field_path)


def test_field_that_no_code_reads_is_declared_ineffective() -> None:
    """A field counts as read if any attribute has its name; those of `cluster` are dumped into pods as they are."""
    code = "".join(
        path.read_text()
        for package in ("runtime/hindcast", "operator/hindcast_operator")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "ineffective_fields.py"
    )
    names = set(re.findall(r"\.(\w+)", code))
    leaves = {leaf for spec in (OfflineTrainingSpec, OfflineRecordingSpec) for leaf in leaf_fields(spec)}
    unread_fields = {path for path, name in leaves if name not in names and not path.startswith("cluster.")}
    assert unread_fields == set(INEFFECTIVE_EVERYWHERE)
