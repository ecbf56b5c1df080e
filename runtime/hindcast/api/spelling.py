"""YAML's spelling of enums: `MeanStd` for what is "meanStd" in Python.

Kubernetes spells the values of enums in PascalCase. Python has RLlib's spelling (`grad_clip_by="global_norm"`), and
so have the files of checkpoints and the spec hash. A user's YAML has YAML's spelling alone (`IN_YAML`); what is
stored may have either (`EITHER_SPELLING`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SerializationInfo, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Spelling = Mapping[str, bool]
IN_YAML: Final[Spelling] = {"yaml": True, "python": False}
"""Pydantic context: validation allows YAML's spelling alone."""
EITHER_SPELLING: Final[Spelling] = {"yaml": True, "python": True}
"""Pydantic context: validation allows either spelling, since files of older runs have Python's."""
IN_PYTHON: Final[Spelling] = {"yaml": False, "python": True}
"""Pydantic context: serialisation by YAML's names (aliases) writes Python's spelling all the same."""
OLD_SPELLING: Final = "old_spelling"
"""Type of the error of a value in Python's spelling where YAML's is required; its context has the `word`."""
_PYTHON: Final = "x-python"
"""JSON schema: Python's spellings of the values of `enum`, in the same order."""


class YamlWords:
    """Marks a Literal with YAML's spellings of its values: `Annotated[Literal["none"], YamlWords("None")]`.

    Args:
        words: one for each value of the Literal, in the same order.
    """

    def __init__(self, *words: str) -> None:
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        to_yaml = dict(zip(get_args(source), self.words, strict=True))
        return core_schema.with_info_before_validator_function(
            _reader(to_yaml),
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(_writer(to_yaml), info_arg=True),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        python = handler(schema)
        values = python["enum"] if "enum" in python else [python["const"]]
        return {"type": "string", "enum": list(self.words), _PYTHON: list(values)}


def _reader(to_yaml: Mapping[str, str]) -> Callable[[Any, ValidationInfo], Any]:
    to_python = {word: value for value, word in to_yaml.items()}
    expected = " or ".join(filter(None, (", ".join(list(to_python)[:-1]), list(to_python)[-1])))

    def read(value: Any, info: ValidationInfo) -> Any:
        name = value if isinstance(value, str) else ""
        # Python code may use either spelling: RLlib's by habit, or the one that the reference page shows.
        if name in to_python or not is_yaml(info):
            return to_python.get(name, value)
        if name in to_yaml and not is_strict(info):
            return name
        if name in to_yaml:
            raise PydanticCustomError(
                OLD_SPELLING, "is {value!r}: write {word}", {"value": name, "word": to_yaml[name]}
            )
        raise PydanticCustomError("literal_error", "expected {expected}", {"expected": expected})

    return read


def _writer(to_yaml: Mapping[str, str]) -> Callable[[Any, SerializationInfo], Any]:
    def write(value: Any, info: SerializationInfo) -> Any:
        in_yaml = info.context.get("yaml") if info.context else info.by_alias
        return to_yaml.get(value, value) if in_yaml else value

    return write


def is_yaml(info: ValidationInfo) -> bool:
    """Return whether a validation is of YAML."""
    return bool(info.context and info.context.get("yaml"))


def is_strict(info: ValidationInfo) -> bool:
    """Return whether a validation allows YAML's spelling alone."""
    return bool(info.context and not info.context.get("python"))


def respell_defaults(schema: JsonSchemaValue) -> None:
    """Give the fields of an object's JSON schema their defaults in YAML's spelling, in place.

    Pydantic writes a default as it is in Python.
    """
    for part in schema.get("properties", {}).values():
        if "default" in part:
            part["default"] = respelt(part["default"], yaml_words(part))


def yaml_words(schema: Any) -> dict[str, str]:
    """Map Python's spellings to YAML's, of all enums in the JSON schema of one option."""
    return dict(_pairs(schema))


def python_words(schema: Any) -> dict[str, str]:
    """Map YAML's spellings to Python's, of all enums in the JSON schema of one option."""
    return {word: value for value, word in _pairs(schema)}


def respelt(value: Any, words: Mapping[str, str]) -> Any:
    """Return a value, or the entries of nested lists, in the other spelling; what is not an enum's stays."""
    if isinstance(value, list):
        return [respelt(entry, words) for entry in value]
    return words.get(value, value) if isinstance(value, str) else value


def _pairs(schema: Any) -> Iterator[tuple[str, str]]:
    if isinstance(schema, list):
        for part in schema:
            yield from _pairs(part)
    elif isinstance(schema, dict):
        if _PYTHON in schema:
            yield from zip(schema[_PYTHON], schema["enum"], strict=True)
        for part in schema.values():
            yield from _pairs(part)
