"""The options of the algorithms, checked without importing an algorithm (and with it torch).

`generated/algorithms.json` has the JSON schema of each algorithm's options. `make crds` writes it from the option
classes, which are defined next to the losses. This module turns each schema into a pydantic model again, so that
messages about options are like those about other fields.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, Union

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, create_model

from hindcast.api.base import CLASS_PATH_PATTERN, Int
from hindcast.api.option_types import RELATIONS, TYPES_BY_NAME, RelatedOptions
from hindcast.api.spelling import YamlWords, is_strict, python_words, respell, yaml_words

Schema = Mapping[str, Any]

_BOUNDS: Final = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}
_TYPES: Final = {"integer": Int, "number": float, "boolean": bool, "string": str, "null": None}


class _RebuiltOptions(RelatedOptions):
    """Base of the models that are rebuilt from JSON schemas."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )


@cache
def schemas() -> dict[str, Schema]:
    """Map algorithm names to the JSON schemas of their options.

    Each schema also has traits of the algorithm, such as `x-kinds`; `hindcast.algorithms.option_schemas` lists them.
    """
    text = files("hindcast.api").joinpath("generated/algorithms.json").read_text(encoding="utf-8")
    schemas_by_algorithm: dict[str, Schema] = json.loads(text)
    return schemas_by_algorithm


def algorithms(kind: str) -> list[str]:
    """List the algorithms that a resource of this kind can use."""
    return [name for name, schema in schemas().items() if kind in schema["x-kinds"]]


def live_algorithms() -> list[str]:
    """List the algorithms that can learn online, from episodes that their policy plays."""
    return [name for name, schema in schemas().items() if schema.get("x-live")]


def is_custom(algorithm: str) -> bool:
    """Return whether this is a custom algorithm, "package.module:Class"."""
    return re.fullmatch(CLASS_PATH_PATTERN, algorithm) is not None


def options_field(algorithm: str) -> str:
    """Return the name of the spec's field for the algorithm's options."""
    return "customConfig" if is_custom(algorithm) else "config"


@cache
def options_model(algorithm: str) -> type[BaseModel]:
    """Return the pydantic model of an algorithm's options."""
    return build_model(algorithm, schemas()[algorithm])


def non_default_options(algorithm: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that do not have their defaults, converted to their types: `{"lr": 1}` -> `{"lr": 1.0}`."""
    model = options_model(algorithm)
    # The spec hash covers enums in Python's spelling, so that it does not depend on YAML's.
    values = model.model_validate(dict(config)).model_dump()
    return {name: value for name, value in values.items() if value != model.model_fields[name].default}


def in_yaml_words(algorithm: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with enums in YAML's spelling; options that `options_of` does not know are unchanged."""
    options = options_of(algorithm)
    return {
        name: respell(value, yaml_words(options[name])) if name in options else value
        for name, value in config.items()
    }


def _config_in_yaml_words(config: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    algorithm = info.data.get("algorithm")
    # Values from a file are not respelled, so that `check_algorithm` can report Python's spelling in it.
    return config if algorithm is None or is_strict(info) else in_yaml_words(algorithm, config)


Config = Annotated[dict[str, Any], AfterValidator(_config_in_yaml_words)]
"""Options of the algorithm that the preceding field `algorithm` names, with enums in YAML's spelling."""


@cache
def options_of(algorithm: str | None) -> Mapping[str, Schema]:
    """Map option names to their JSON schemas; for an algorithm not in `schemas()`, the options that all have."""
    known_schemas = schemas()
    first_schema, *other_schemas = (
        [known_schemas[algorithm]] if algorithm in known_schemas else known_schemas.values()
    )
    return {
        name: option
        for name, option in first_schema["properties"].items()
        if all(name in schema["properties"] for schema in other_schemas)
    }


def options_lacking_requirement(algorithm: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Find the options in `config` that have no effect, since they require another option that is not set.

    Returns:
        Name of the option -> name of the option that it requires (`x-only-with`), both as in YAML.
    """
    options = options_of(algorithm)
    defaults = {name: option.get("default") for name, option in options.items()}
    values = defaults | in_yaml_words(algorithm, config)
    return {
        name: requirement
        for name, option in options.items()
        if (requirement := option.get("x-only-with"))
        and values[name] != option["default"]
        and not values[requirement]
    }


def build_model(name: str, schema: Schema) -> type[BaseModel]:
    """Build a strict pydantic model from an object schema that pydantic wrote.

    Every option has a default. Its type is a number, text, a boolean, an enum, or a type of `option_types`; it may also
    be null.
    """
    fields: dict[str, Any] = {}
    for field, part in schema["properties"].items():
        relations = {key: part[key] for key in RELATIONS if key in part}
        default = respell(part["default"], python_words(part))
        field_info = Field(default=default, description=part.get("description"), json_schema_extra=relations)
        fields[field] = (_annotation(part), field_info)
    model: type[BaseModel] = create_model(name, __base__=_RebuiltOptions, **fields)
    return model


def _annotation(schema: Schema) -> Any:
    if "x-type" in schema:
        return TYPES_BY_NAME[schema["x-type"]]
    if "anyOf" in schema:
        return Union[tuple(map(_annotation, schema["anyOf"]))]  # noqa: UP007
    if "enum" in schema:
        words = python_words(schema) or {word: word for word in schema["enum"]}
        return Annotated[Literal[tuple(words.values())], YamlWords(*words)]
    bounds = {argument: schema[keyword] for keyword, argument in _BOUNDS.items() if keyword in schema}
    return Annotated[_TYPES[schema["type"]], Field(**bounds)]
