"""Generate values.schema.json of the chart: `defaults` comes from the operator's model, the rest is by hand."""

import json
from pathlib import Path
from typing import Any

from hindcast_operator.defaults import Defaults

SCHEMA = Path("charts/hindcast/values.schema.json")


def make_values_schema(root: Path) -> str:
    """Return the schema below `root` with `defaults` and `$defs` regenerated and the rest unchanged."""
    schema = json.loads((root / SCHEMA).read_text(encoding="utf-8"))
    defaults = _remove_ignored_keywords(Defaults.model_json_schema(by_alias=True))
    schema["$defs"] = defaults.pop("$defs")
    schema["properties"]["defaults"] = defaults
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _remove_ignored_keywords(schema: Any) -> Any:
    """Return a schema without keywords that helm ignores: rules of the API server, titles, defaults."""
    if isinstance(schema, list):
        return [_remove_ignored_keywords(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _remove_ignored_keywords(part) for name, part in value.items()}
        if key in {"properties", "$defs"}
        else _remove_ignored_keywords(value)
        for key, value in schema.items()
        if key not in {"title", "default"} and not key.startswith("x-kubernetes-")
    }
