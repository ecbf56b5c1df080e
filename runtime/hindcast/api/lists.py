"""Markers for how server-side apply merges a list: by keys of its entries or as a set; else as a whole (atomic)."""

from collections import Counter
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

LIST_TYPE = "x-kubernetes-list-type"


# The API server refuses an object in which two entries have the same key, so the loader must refuse it too.
class ListMap:
    """A marker for a list of models that is merged entry by entry: no two entries have the same keys.

    Args:
        keys: fields of an entry that identify it, by their YAML names.
    """

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(schema) | {LIST_TYPE: "map", "x-kubernetes-list-map-keys": list(self.keys)}

    def _check(self, entries: list[Any]) -> list[Any]:
        keys = Counter(tuple(getattr(entry, to_snake(key)) for key in self.keys) for entry in entries)
        for values, count in keys.items():
            if count > 1:
                key_text = ", ".join(f"{key} {value!r}" for key, value in zip(self.keys, values, strict=True))
                raise ValueError(f"has {count} entries with {key_text}; keep one")
        return entries


class ListSet:
    """A marker for a list of texts in any order, without duplicates."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(schema) | {LIST_TYPE: "set"}

    def _check(self, entries: list[str]) -> list[str]:
        for entry, count in Counter(entries).items():
            if count > 1:
                raise ValueError(f"has {entry!r} {count} times; keep one")
        return entries
