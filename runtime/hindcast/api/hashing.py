"""The spec hash: 16 hex digits for the fields that define the result of a run."""

import hashlib
import json
from collections.abc import Collection
from typing import Any

from hindcast.api.base import EXTENDABLE, FIXED, LOCATION, OPERATIONAL, Model
from hindcast.api.options import is_custom, non_default_options
from hindcast.api.recording import OfflineRecording, TrainPolicy
from hindcast.api.training import OfflineTraining, OfflineTrainingSpec


def spec_hash(resource: OfflineRecording | OfflineTraining) -> str:
    """Return 16 hex digits (of SHA-256) over the run-defining fields of the spec.

    Fields marked operational (pool sizes, prefetching, deadlines, paths …) and fields with their defaults do not count.
    So the hash stays the same if a default is written out, or if a later version has more fields.
    """
    return _hash(resource, _defining_fields(resource.spec))


def course_hash(resource: OfflineRecording | OfflineTraining) -> str:
    """Return 16 hex digits over the run-defining fields that no attempt of a revision may change.

    Extendable fields (`stop` and `evaluation` of a training) do not count, since they only say how far the run goes: a
    training with more updates begins with the same ones. Fixed fields within them (which episodes are held out) count.
    """
    return _hash(resource, course_fields(resource))


def part_hash(part: Model, excluded: Collection[str]) -> str:
    """Return 16 hex digits over the run-defining fields of a part of a spec.

    Args:
        part: the part.
        excluded: YAML names of fields that do not count.
    """
    return _digest({name: value for name, value in _defining_fields(part).items() if name not in excluded})


def course_fields(resource: OfflineRecording | OfflineTraining) -> dict[str, Any]:
    """Return the fields that `course_hash` covers, by YAML name; fixed fields by path, `evaluation.offline.heldOut`."""
    course = _defining_fields(resource.spec)
    for name, field in type(resource.spec).model_fields.items():
        if EXTENDABLE in field.metadata:
            course.pop(field.alias or name, None)
            course |= _fixed_fields(getattr(resource.spec, name), field.alias or name)
    return course


def _hash(resource: OfflineRecording | OfflineTraining, fields: dict[str, Any]) -> str:
    return _digest({"kind": resource.kind, "spec": fields})


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _defining_fields(model: Model) -> dict[str, Any]:
    """Return the run-defining fields that do not have their defaults, by YAML name, with JSON values."""
    values: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if OPERATIONAL in field.metadata or LOCATION in field.metadata:
            continue
        if value == field.get_default(call_default_factory=True):
            continue
        values[field.alias or name] = _to_json_value(value)
    if (
        isinstance(model, OfflineTrainingSpec | TrainPolicy)
        and model.config
        and not is_custom(model.algorithm)
    ):
        values["config"] = non_default_options(model.algorithm, model.config)
    # A part whose remaining fields are all defaults means the same as its absence, unless its presence is a choice
    # (`policy: {random: {}}`).
    return {name: value for name, value in values.items() if value != {} or name in model.exactly_one}


def _fixed_fields(value: Any, path: str) -> dict[str, Any]:
    """Return the fixed fields of an extendable part that are set, by path."""
    fixed_fields: dict[str, Any] = {}
    if not isinstance(value, Model):
        return fixed_fields
    for name, field in type(value).model_fields.items():
        field_value, field_path = getattr(value, name), f"{path}.{field.alias or name}"
        fixed_fields |= _fixed_fields(field_value, field_path)
        if field_value is not None and FIXED in field.metadata:
            fixed_fields[field_path] = _to_json_value(field_value)
    return fixed_fields


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Model):
        return _defining_fields(value)
    if isinstance(value, dict):
        return {key: _to_json_value(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_to_json_value(entry) for entry in value]
    return value
