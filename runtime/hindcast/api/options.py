"""The options of the algorithms, checked without importing an algorithm (and with it torch).

`generated/algorithms.json` holds the JSON schema of each algorithm's options, written by `make crds` from the
classes next to their losses. Here each schema becomes a pydantic model again, so that a wrong option reads
like any other wrong field.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, create_model

from hindcast.api.base import CLASS_PATH, Int
from hindcast.api.option_types import BY_NAME, RELATIONS, Related

Schema = Mapping[str, Any]

_BOUNDS: Final = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}
_TYPES: Final = {"integer": Int, "number": float, "boolean": bool, "string": str, "null": None}


class _Rebuilt(Related):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )


@cache
def schemas() -> dict[str, Schema]:
    """Algorithm name -> JSON schema of its options, and what it can do as `algorithms.option_schemas` says."""
    text = files("hindcast.api").joinpath("generated/algorithms.json").read_text(encoding="utf-8")
    loaded: dict[str, Schema] = json.loads(text)
    return loaded


def algorithms(kind: str) -> list[str]:
    """Names of the algorithms that a resource of this kind can use."""
    return [name for name, schema in schemas().items() if kind in schema["x-kinds"]]


def live_algorithms() -> list[str]:
    """Names of the algorithms that learn from what their policy plays while it is trained."""
    return [name for name, schema in schemas().items() if schema.get("x-live")]


def is_custom(algorithm: str) -> bool:
    """Whether this is a user's own algorithm, "package.module:Class"."""
    return re.fullmatch(CLASS_PATH, algorithm) is not None


def options_field(algorithm: str) -> str:
    """The field of a spec that has the algorithm's options."""
    return "customConfig" if is_custom(algorithm) else "config"


@cache
def options_model(algorithm: str) -> type[BaseModel]:
    """The pydantic model of an algorithm's options."""
    return build_model(algorithm, schemas()[algorithm])


def normalised(algorithm: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without what equals the defaults, in the options' types: `{"lr": 1}` -> `{"lr": 1.0}`."""
    model = options_model(algorithm)
    values = model.model_validate(dict(config)).model_dump()
    return {name: value for name, value in values.items() if value != model.model_fields[name].default}


@cache
def options_of(algorithm: str | None) -> Mapping[str, Schema]:
    """Name -> JSON schema of an algorithm's options; of another than `schemas()` has, those that all of them share."""
    known = schemas()
    first, *others = [known[algorithm]] if algorithm in known else known.values()
    return {
        name: option
        for name, option in first["properties"].items()
        if all(name in other["properties"] for other in others)
    }


def options_lacking_another(algorithm: str, config: Mapping[str, Any]) -> dict[str, str]:
    """The options given, and not at their defaults, that lack the one without which they have no effect.

    Returns:
        Name of the option -> name of that one (`x-only-with`), by their YAML names.
    """
    known = options_of(algorithm)
    values = {name: option.get("default") for name, option in known.items()} | dict(config)
    return {
        name: needed
        for name, option in known.items()
        if (needed := option.get("x-only-with")) and values[name] != option["default"] and not values[needed]
    }


def build_model(name: str, schema: Schema) -> type[BaseModel]:
    """A strict pydantic model of an object schema, in the dialect that pydantic itself writes.

    Every option has a default. It is a number, text, true or false, one of some words, or what `option_types` names;
    any of these may be null instead.
    """
    fields: dict[str, Any] = {}
    for field, part in schema["properties"].items():
        related = {key: part[key] for key in RELATIONS if key in part}
        about = Field(default=part["default"], description=part.get("description"), json_schema_extra=related)
        fields[field] = (_annotation(part), about)
    model: type[BaseModel] = create_model(name, __base__=_Rebuilt, **fields)
    return model


def _annotation(schema: Schema) -> Any:
    if "x-type" in schema:
        return BY_NAME[schema["x-type"]]
    if "anyOf" in schema:
        return Union[tuple(map(_annotation, schema["anyOf"]))]  # noqa: UP007
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    bounds = {ours: schema[theirs] for theirs, ours in _BOUNDS.items() if theirs in schema}
    return Annotated[_TYPES[schema["type"]], Field(**bounds)]
