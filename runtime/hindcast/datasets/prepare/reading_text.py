"""A reading as a user writes it: as options of the data commands, and as an entry of `spec.input`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hindcast.api.input import PrepareSpec
from hindcast.datasets.prepare.reading import Reading

_PLAIN: Final = re.compile(r"[A-Za-z_](?:[\w./-]|:(?! ))*")
_YAML_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "none", "nan", "inf"}
_NOT_ON_COMMAND_LINE: Final = {"missing", "missing_indicators", "episodes"}


def as_options(reading: Reading) -> str:
    """Return the paths and options with which `hindcast inspect` and other data commands read the same data."""
    options = reading.options
    arguments = [str(path) for path in reading.paths]
    if reading.format != "Auto":
        arguments += ["--format", reading.format]
    for name, sources in options.schema.items():
        for source in [sources] if isinstance(sources, str) else sources:
            arguments += ["--schema", f"{name}={source}"]
    if options.time is not None:
        arguments += ["--time", options.time.column]
        arguments += [] if options.time.unit == 1 else ["--time-unit", str(options.time.unit)]
        arguments += ["--observe-time"] if options.time.observe else []
    if options.columns is not None:
        arguments += ["--columns", ",".join(options.columns)]
    for term in options.filter:
        arguments += ["--filter", f"{term.column} {term.op} {json.dumps(term.value)}"]
    for name, value in options.options.items():
        arguments += ["--read-option", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    rules = reading.prepare.model_dump(exclude_defaults=True, exclude=_NOT_ON_COMMAND_LINE)
    for name, value in rules.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    if reading.prepare.episodes == "File":
        arguments.append("--file-episodes")
    if reading.actions_normalized is not None:
        arguments += ["--actions", "Normalized" if reading.actions_normalized else "Raw"]
    if options.ignore_final_observation:
        arguments.append("--ignore-final-observation")
    return shlex.join(arguments)


def as_yaml(reading: Reading) -> list[list[str]]:
    """Return the entries of `spec.input`, one per path: lines without indentation, and without `prepare`."""
    options = reading.options
    fields: dict[str, Any] = {
        **({"format": reading.format} if reading.format != "Auto" else {}),
        **({"readOptions": dict(options.options)} if options.options else {}),
        **(
            {}
            if options.time is None
            else {"time": options.time.model_dump(mode="json", exclude_defaults=True)}
        ),
        **({"columns": list(options.columns)} if options.columns is not None else {}),
        **({"filter": [term.model_dump(mode="json") for term in options.filter]} if options.filter else {}),
        **({"ignoreFinalObservation": True} if options.ignore_final_observation else {}),
        **(
            {"actionsNormalized": reading.actions_normalized}
            if reading.actions_normalized is not None
            else {}
        ),
    }
    schema_lines = ["schema:", *(f"  {name}: {to_flow(sources)}" for name, sources in options.schema.items())]
    return [
        [
            f"path: {to_flow(str(path))}",
            *(schema_lines if options.schema else ()),
            *(f"{name}: {to_flow(value)}" for name, value in fields.items()),
        ]
        for path in reading.paths
    ]


def prepare_document(prepare: PrepareSpec) -> dict[str, Any]:
    """Return the fields of `prepare` that are not defaults, by their names in YAML, without those on missing values."""
    return prepare.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"missing", "missing_indicators"}
    )


def to_flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_flow(key)}: {to_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(to_flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
