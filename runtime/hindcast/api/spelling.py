"""YAML's spelling of enums: `MeanStd` in YAML is "meanStd" in Python.

Kubernetes spells the values of enums in PascalCase. Python has RLlib's spelling (`grad_clip_by="global_norm"`), which
the files of checkpoints and the spec hash also have. A user's YAML must have YAML's spelling (`IN_YAML`); stored
files may have either one (`EITHER_SPELLING`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SerializationInfo, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Spelling = Mapping[str, bool]
"""Pydantic context. "yaml": the values come from YAML or stored files, or are written to them, not from Python code;
"python": they may have Python's spelling."""
IN_YAML: Final[Spelling] = {"yaml": True, "python": False}
"""Pydantic context: validation only allows YAML's spelling."""
EITHER_SPELLING: Final[Spelling] = {"yaml": True, "python": True}
"""Pydantic context: validation allows either spelling, since files of older runs have Python's."""
IN_PYTHON: Final[Spelling] = {"yaml": False, "python": True}
"""Pydantic context: serialisation writes Python's spelling of enums, even if fields have YAML's names (aliases)."""
PYTHON_SPELLING: Final = "python_spelling"
"""Error type: a value has Python's spelling where YAML's is required. The context has YAML's as `word`."""
_PYTHON_ENUM: Final = "x-python"
"""JSON schema: Python's spellings of the values of `enum`, in the same order."""


class YamlWords:
    """A marker with YAML's spellings for the values of a Literal: `Annotated[Literal["none"], YamlWords("None")]`.

    Args:
        words: YAML's spelling of each value of the Literal, in the same order.
    """

    def __init__(self, *words: str) -> None:
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        to_yaml = dict(zip(get_args(source), self.words, strict=True))
        return core_schema.with_info_before_validator_function(
            _make_reader(to_yaml),
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(
                _make_writer(to_yaml), info_arg=True
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # The module `options` rebuilds models only from JSON schemas, so these must have both spellings.
        python_schema = handler(schema)
        values = python_schema["enum"] if "enum" in python_schema else [python_schema["const"]]
        return {"type": "string", "enum": list(self.words), _PYTHON_ENUM: list(values)}


def _make_reader(to_yaml: Mapping[str, str]) -> Callable[[Any, ValidationInfo], Any]:
    to_python = {word: value for value, word in to_yaml.items()}
    *words, last_word = to_python
    expected = f"{', '.join(words)} or {last_word}" if words else last_word

    def read(value: Any, info: ValidationInfo) -> Any:
        name = value if isinstance(value, str) else ""
        # Python code may use either spelling: RLlib's by habit, or the one that the reference page shows.
        if name in to_python or not is_yaml(info):
            return to_python.get(name, value)
        if name in to_yaml and not is_strict(info):
            return name
        if name in to_yaml:
            raise PydanticCustomError(
                PYTHON_SPELLING, "is {value!r}: write {word}", {"value": name, "word": to_yaml[name]}
            )
        raise PydanticCustomError("literal_error", "expected {expected}", {"expected": expected})

    return read


def _make_writer(to_yaml: Mapping[str, str]) -> Callable[[Any, SerializationInfo], Any]:
    def write(value: Any, info: SerializationInfo) -> Any:
        in_yaml = info.context.get("yaml") if info.context else info.by_alias
        return to_yaml.get(value, value) if in_yaml else value

    return write


def is_yaml(info: ValidationInfo) -> bool:
    """Return whether the values that are validated come from YAML or stored files, not from Python code."""
    return bool(info.context and info.context.get("yaml"))


def is_strict(info: ValidationInfo) -> bool:
    """Return whether a validation only allows YAML's spelling."""
    return bool(info.context and not info.context.get("python"))


def respell_defaults(schema: JsonSchemaValue) -> None:
    """Convert the defaults in an object's JSON schema to YAML's spelling, in place; pydantic writes Python's."""
    for part in schema.get("properties", {}).values():
        if "default" in part:
            part["default"] = respell(part["default"], yaml_words(part))


def yaml_words(schema: Any) -> dict[str, str]:
    """Map Python's spellings to YAML's, for all enums in the JSON schema of one option."""
    return dict(_pairs(schema))


def python_words(schema: Any) -> dict[str, str]:
    """Map YAML's spellings to Python's, for all enums in the JSON schema of one option."""
    return {word: value for value, word in _pairs(schema)}


def respell(value: Any, words: Mapping[str, str]) -> Any:
    """Return a value with each string in it that is a key of `words` replaced; only lists are searched."""
    if isinstance(value, list):
        return [respell(entry, words) for entry in value]
    return words.get(value, value) if isinstance(value, str) else value


def _pairs(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield (Python's spelling, YAML's spelling)."""
    if isinstance(schema, list):
        for part in schema:
            yield from _pairs(part)
    elif isinstance(schema, dict):
        if _PYTHON_ENUM in schema:
            yield from zip(schema[_PYTHON_ENUM], schema["enum"], strict=True)
        for part in schema.values():
            yield from _pairs(part)
