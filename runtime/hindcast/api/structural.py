"""Convert pydantic's JSON schemas to Kubernetes' structural schemas.

The API server requires one type per field, no references and no unions with null. Fields of several types are left
open (`x-kubernetes-preserve-unknown-fields`) and checked when the resource is loaded.
"""

from collections.abc import Mapping
from typing import Any, Final

from hindcast.api.lists import LIST_TYPE

Schema = Mapping[str, Any]
OPEN: Final = "x-kubernetes-preserve-unknown-fields"

# Limits for fields that have none, since the API server estimates the cost of CEL rules from them.
_DEFAULT_LIMITS: Final = {"string": ("maxLength", 1024), "array": ("maxItems", 64)}

# Bounds that only apply to values of one type, so that a field of several types may have them.
_BOUNDS_BY_TYPE: Final = {
    "array": ("maxItems", "minItems"),
    "integer": ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"),
    "number": ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"),
}

_TYPE_PHRASES: Final = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}
_COPIED_KEYWORDS: Final = (
    "description",
    "enum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "not",
    "pattern",
    "required",
    "type",
)


def to_structural(schema: Schema, definitions: Mapping[str, Schema] | None = None) -> dict[str, Any]:
    """Return the structural schema of a JSON schema written by pydantic (its `$defs` are the definitions).

    Defaults stay, except empty lists and mappings, and except a section's default that contains no other defaults.
    """
    definitions = definitions or schema.get("$defs", {})
    schema = _resolve(schema, definitions)
    if "discriminator" in schema:
        return _convert_tagged_union(schema)
    if "anyOf" in schema:
        return _convert_union(schema, definitions)
    result = {key: schema[key] for key in _COPIED_KEYWORDS if key in schema}
    result |= {key: value for key, value in schema.items() if key.startswith("x-kubernetes-")}
    if "const" in schema:
        result |= {"type": "string", "enum": [schema["const"]]}
    for bound in ("minimum", "maximum"):
        exclusive = f"exclusive{bound.capitalize()}"
        if exclusive in schema:
            result |= {bound: schema[exclusive], exclusive: True}
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if result.get("type") == "integer":
        result["format"] = "int64"
    if result.get("type") in _DEFAULT_LIMITS and "enum" not in result:
        limit, value = _DEFAULT_LIMITS[result["type"]]
        result.setdefault(limit, value)
    result |= _child_schemas(schema, definitions)
    if _is_informative(schema.get("default"), result):
        result["default"] = {} if "properties" in result else schema["default"]
    return result


def without_defaults(schema: Schema) -> dict[str, Any]:
    """Return the schema without any default in it."""
    result = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in result:
        result["properties"] = {name: without_defaults(part) for name, part in result["properties"].items()}
    return result


def _resolve(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Replace a reference by its schema; keywords beside the reference override it."""
    if "$ref" not in schema:
        return schema
    target = _resolve(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    return {**target, **{key: value for key, value in schema.items() if key != "$ref"}}


def _child_schemas(schema: Schema, definitions: Mapping[str, Schema]) -> dict[str, Any]:
    if "properties" in schema:
        parts = {name: to_structural(part, definitions) for name, part in schema["properties"].items()}
        # The API server drops an empty mapping, and GitOps tools would always see a difference.
        return {"properties": parts} if parts else {}
    if schema.get("type") == "array":
        list_type = {} if LIST_TYPE in schema else {LIST_TYPE: "atomic"}
        return {"items": to_structural(schema.get("items", {}), definitions) or {OPEN: True}, **list_type}
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        return {"additionalProperties": to_structural(values, definitions)} | (
            {} if "maxProperties" in schema else {"maxProperties": 64}
        )
    has_type = any(key in schema for key in ("const", "enum", "x-kubernetes-int-or-string", OPEN))
    return {} if has_type or schema.get("type", "object") != "object" else {OPEN: True}


def _convert_union(schema: Schema, definitions: Mapping[str, Schema]) -> dict[str, Any]:
    """Return the only alternative besides null, else an open field; nullable only if the default is not null."""
    alternatives = [part for part in schema["anyOf"] if part.get("type") != "null"]
    outer_keywords = {key: value for key, value in schema.items() if key not in ("anyOf", "title")}
    if len(alternatives) == 1:
        alternative = _resolve(alternatives[0], definitions)
        result = to_structural({**alternative, **outer_keywords}, definitions)
    else:
        description = {key: outer_keywords[key] for key in ("description",) if key in outer_keywords}
        result = _open_field(description, alternatives)
    if len(alternatives) < len(schema["anyOf"]) and schema.get("default") is not None:
        result["nullable"] = True
    return result


def _open_field(description: Schema, alternatives: list[Schema]) -> dict[str, Any]:
    """Return an open field of several types. Bounds and a pattern refuse values of all other types."""
    types = {part.get("type") for part in alternatives}
    result = {**to_structural(description), OPEN: True}
    # No value has this text as its content, so the pattern refuses all text. The API server shows it in the error.
    if "string" not in types:
        result["pattern"] = f"^expected {' or '.join(sorted(_TYPE_PHRASES[str(name)] for name in types))}$"
    if "object" not in types:
        result["maxProperties"] = 0
    for part in map(to_structural, alternatives):
        result |= {
            bound: part[bound] for bound in _BOUNDS_BY_TYPE.get(part.get("type", ""), ()) if bound in part
        }
    return result


def _convert_tagged_union(schema: Schema) -> dict[str, Any]:
    """Return a union with a discriminator; only the discriminator is checked, since the union may contain itself."""
    tag = schema["discriminator"]["propertyName"]
    tags = sorted(schema["discriminator"]["mapping"])
    description = {"description": schema["description"]} if "description" in schema else {}
    return description | {
        "type": "object",
        "required": [tag],
        "properties": {tag: {"description": "What it is.", "type": "string", "enum": tags}},
        OPEN: True,
    }


def _is_informative(default: Any, result: Mapping[str, Any]) -> bool:
    """Return whether a default differs in meaning from an absent field."""
    if default is None or default in ([], {}):
        return False
    if "properties" in result:
        return any("default" in part for part in result["properties"].values())
    return True
