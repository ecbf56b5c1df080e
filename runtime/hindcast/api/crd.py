"""The CustomResourceDefinitions: schema, CEL rules, printer columns. Only computed here; `make crds` writes them.

The API server checks at admission what pydantic checks when a resource is loaded: types, bounds and choices by the
schema, the rest by CEL rules. Most rules are defined next to the fields; those on an algorithm, its options and the
fields that must fit it are in `checks`. The rules on changes that require a higher revision are built here.

A field that accepts a number or a list (a schedule) has no single type, so CEL cannot read it: only the loader checks
that it applies to the algorithm. Rules that compare a whole section notice a change of such a field in it; a change
outside of these sections (`pipeline.connectors`) is only noticed by the spec hash.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hindcast.api.base import EXTENDABLE, FIXED, GROUP, OPERATIONAL, VERSION, Model
from hindcast.api.checks import algorithm_rules
from hindcast.api.metadata import NAME_LIMIT, NAME_PATTERN
from hindcast.api.recording import OfflineRecording
from hindcast.api.rules import cel_name
from hindcast.api.sentences import models_in, named_fields
from hindcast.api.structural import OPEN, Schema, to_structural, without_defaults
from hindcast.api.training import OfflineTraining

Kind = type[OfflineRecording] | type[OfflineTraining]

KINDS: Final[dict[Kind, tuple[str, str]]] = {
    OfflineRecording: ("offlinerecordings", "orec"),
    OfflineTraining: ("offlinetrainings", "otr"),
}
"""Resource -> (plural, short name)."""


def custom_resource_definitions(algorithms: Mapping[str, Schema]) -> dict[str, dict[str, Any]]:
    """Return the CRDs by plural name.

    Args:
        algorithms: name -> JSON schema of the algorithm's options, see `options.schemas`.
    """
    return {
        plural: _make_definition(kind, plural, short_name, algorithms)
        for kind, (plural, short_name) in KINDS.items()
    }


def _make_definition(
    kind: Kind, plural: str, short_name: str, algorithms: Mapping[str, Schema]
) -> dict[str, Any]:
    name = kind.__name__
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "plural": plural,
                "singular": name.lower(),
                "shortNames": [short_name],
                "categories": ["hindcast"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _printer_columns(kind),
                    "selectableFields": _selectable_fields(kind),
                    "schema": {"openAPIV3Schema": _root_schema(kind, algorithms)},
                }
            ],
        },
    }


def _printer_columns(kind: Kind) -> list[dict[str, Any]]:
    if kind is OfflineTraining:
        algorithm, result = ".spec.algorithm", {"Checkpoint": ".status.checkpoint.path"}
    else:
        algorithm, result = ".spec.policy.train.algorithm", {"Output": ".status.output.path"}
    default_columns = {
        "State": ".status.state",
        "Reason": '.status.conditions[?(@.type=="Ready")].reason',
        "Algorithm": algorithm,
        "Progress": ".status.progress.summary",
        "Return": ".status.progress.episodeReturn",
        # The operator writes the latest attempt first, and server-side apply keeps this order (checked with 1.34).
        "Attempt": ".status.runs[0].attempt",
        "Age": ".metadata.creationTimestamp",
    }
    wide_columns = {"RayJob": ".status.rayJobName", **result, "Message": ".status.message"}
    types = {"Age": "date", "Attempt": "integer"}
    return [
        {"name": title, "type": types.get(title, "string"), "jsonPath": path}
        | ({"priority": 1} if title in wide_columns else {})
        for title, path in (default_columns | wide_columns).items()
    ]


def _selectable_fields(kind: Kind) -> list[dict[str, str]]:
    """List what `kubectl get --field-selector` may select by."""
    # The API server allows at most eight, each with one value per object.
    algorithm = ".spec.algorithm" if kind is OfflineTraining else ".spec.policy.train.algorithm"
    paths = (".status.state", ".spec.suspend", algorithm, ".spec.cluster.scheduling.queueName")
    return [{"jsonPath": path} for path in paths]


def _root_schema(kind: Kind, algorithms: Mapping[str, Schema]) -> dict[str, Any]:
    schema = to_structural(kind.model_json_schema(by_alias=True))
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    usable_algorithms = {
        name: options for name, options in algorithms.items() if kind.__name__ in options["x-kinds"]
    }
    section = spec if kind is OfflineTraining else spec["properties"]["policy"]["properties"]["train"]
    description = section["properties"]["config"]["description"]
    section["properties"]["config"] = _config_schema(usable_algorithms, description)
    _add_validations(section, _algorithm_validations(kind, algorithms, section["properties"]["config"]))
    _add_validations(spec, _revision_validations(kind.model_fields["spec"].annotation, spec))
    _describe_defaults(spec)
    # With defaults here, the operator could not tell which fields the user left out, to set the platform's defaults.
    spec["properties"]["runPolicy"] = without_defaults(spec["properties"]["runPolicy"])
    # kstatus (Flux, Helm 4, Argo CD) considers an object without conditions finished, unless its observedGeneration
    # differs from its generation.
    status["default"] = {"observedGeneration": -1}
    return {
        "description": schema["description"],
        "type": "object",
        "required": ["metadata", "spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [_NAME_VALIDATION],
    }


_NAME_VALIDATION: Final = {
    "rule": f"self.metadata.name.size() <= {NAME_LIMIT} && self.metadata.name.matches('{NAME_PATTERN}')",
    "message": f"metadata.name: at most {NAME_LIMIT} lower-case letters, digits and '-' are allowed, "
    "beginning with a letter and not ending with '-'",
}


def _add_validations(schema: dict[str, Any], validations: Iterable[dict[str, str]]) -> None:
    schema.setdefault("x-kubernetes-validations", []).extend(validations)


# -- options ------------------------------------------------------------------------------------------------


def _config_schema(algorithms: Mapping[str, Schema], description: str) -> dict[str, Any]:
    """Return the union of the algorithms' options, without defaults, which would add options that do not apply."""
    fields: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    defaults: dict[str, dict[str, str]] = {}
    for name, options in algorithms.items():
        for field, option in options["properties"].items():
            fields.setdefault(field, []).append((name, without_defaults(to_structural(option))))
            if "default" in option:
                defaults.setdefault(field, {})[name] = _default_text(option["default"])
    properties = {field: _merge_variants(variants) for field, variants in sorted(fields.items())}
    for field, texts in defaults.items():
        properties[field]["description"] += f" Default: {_join_defaults(texts)}."
    return {"description": description, "type": "object", "properties": properties}


def _describe_defaults(schema: dict[str, Any]) -> None:
    """Append the default to the description of each field that has one, recursively and in place."""
    for part in schema.get("properties", {}).values():
        if "default" in part and "properties" not in part and "Default:" not in part["description"]:
            part["description"] += f" Default: {_default_text(part['default'])}."
        _describe_defaults(part)
        _describe_defaults(part.get("items", {}))


def _default_text(default: Any) -> str:
    """Format a default: `5` rather than `5.0`."""
    return (default or '""') if isinstance(default, str) else re.sub(r"\.0\b", "", json.dumps(default))


def _join_defaults(texts: Mapping[str, str]) -> str:
    """Return the text that all algorithms have; if texts differ, each text after the name of its algorithm."""
    distinct_texts = set(texts.values())
    return (
        distinct_texts.pop()
        if len(distinct_texts) == 1
        else ", ".join(f"{name} {text}" for name, text in texts.items())
    )


_TYPE_KEYWORDS: Final = (
    "type",
    "properties",
    "items",
    "additionalProperties",
    "x-kubernetes-int-or-string",
    OPEN,
)
_EXCLUSIVE_BOUNDS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def _merge_variants(variants: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Merge an option's schemas, as (algorithm, schema), into what all agree on; the loader checks the rest."""
    schemas = [schema for _, schema in variants]
    first_schema = schemas[0]
    shared: dict[str, Any] = {OPEN: True}
    if all(schema.get(key) == first_schema.get(key) for schema in schemas for key in _TYPE_KEYWORDS):
        shared = {
            key: value
            for key, value in first_schema.items()
            if all(schema.get(key) == value for schema in schemas)
        }
    for exclusive, bound in _EXCLUSIVE_BOUNDS.items():
        if bound not in shared:
            shared.pop(exclusive, None)
    if any(schema.get("nullable") for schema in schemas):
        shared["nullable"] = True
    return {**shared, "description": _merge_descriptions(variants)}


def _merge_descriptions(variants: list[tuple[str, dict[str, Any]]]) -> str:
    """Return the description of an option; if descriptions differ, each after the names of its algorithms."""
    names_by_text: dict[str, list[str]] = {}
    for name, schema in variants:
        names_by_text.setdefault(schema.get("description", ""), []).append(name)
    if len(names_by_text) == 1:
        return next(iter(names_by_text))
    return " ".join(f"{', '.join(names)}: {text}" for text, names in names_by_text.items())


def _algorithm_validations(
    kind: Kind, algorithms: Mapping[str, Schema], config: Schema
) -> Iterator[dict[str, str]]:
    for rule in algorithm_rules(kind.__name__, algorithms):
        section, _, option = rule.field.partition(".")
        if section == "config" and (
            option not in config["properties"] or _is_hidden_from_cel(config["properties"][option])
        ):
            continue
        yield rule.validation()


# -- revisions ----------------------------------------------------------------------------------------------


def _revision_validations(model: Any, spec: Schema) -> Iterator[dict[str, str]]:
    yield _validation("self.revision >= oldSelf.revision", "revision never decreases", "revision")
    for path in _defining_paths(model, spec):
        field = ".".join(path)
        yield _validation(
            f"self.revision > oldSelf.revision || {_unchanged_rule(path, spec)}",
            f"{field} defines the run: it changes only with a higher revision",
            field,
        )


def _validation(rule: str, message: str, field: str) -> dict[str, str]:
    return {"rule": rule, "message": message, "fieldPath": f".{field}"}


def _unchanged_rule(path: tuple[str, ...], schema: Schema) -> str:
    """Return a CEL expression that is true if a field has not changed."""
    # CEL's optional types would be shorter, but the API server estimates an unbounded cost for them.
    guards, chain = [], ""  # in a guard, %s stands for `self` or `oldSelf`
    for step in path:
        chain += f".{cel_name(step)}"
        part = schema["properties"][step]
        # A required field, or one with a default, always exists when a rule is evaluated.
        if step not in schema.get("required", ()) and "default" not in part:
            guards.append(f"has(%s{chain})")
        schema = part
    is_equal = f"self{chain} == oldSelf{chain}"
    if not guards:
        return is_equal
    guard = " && ".join(guards)
    is_set, was_set = guard.replace("%s", "self"), guard.replace("%s", "oldSelf")
    return f"(({is_set}) ? ({was_set}) && {is_equal} : !({was_set}))"


def _defining_paths(
    model: type[Model], schema: Schema, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the largest sections of the spec that CEL can read and in which all fields define the run."""
    for alias, field in named_fields(model).items():
        part = schema["properties"][alias]
        child_models = models_in(field.annotation)
        if EXTENDABLE in field.metadata:
            yield from _fixed_paths(child_models[0], part, (*path, alias))  # type: ignore[arg-type]
        if _may_change(field) or _is_hidden_from_cel(part):
            continue
        if len(child_models) == 1 and "properties" in part and _has_changeable_field(child_models[0]):
            yield from _defining_paths(child_models[0], part, (*path, alias))  # type: ignore[arg-type]
        else:
            yield (*path, alias)


def _fixed_paths(model: type[Model], schema: Schema, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the fixed fields inside an extendable one."""
    for alias, field in named_fields(model).items():
        if FIXED in field.metadata:
            yield (*path, alias)
        for child_model in models_in(field.annotation):
            yield from _fixed_paths(child_model, schema["properties"][alias], (*path, alias))  # type: ignore[arg-type]


def _is_hidden_from_cel(schema: Schema) -> bool:
    """Return whether CEL cannot read a field, since it has several types. (CEL can compare an open mapping.)"""
    if OPEN in schema and "type" not in schema:
        return True
    return isinstance(schema.get("items"), dict) and _is_hidden_from_cel(schema["items"])


def _has_changeable_field(model: type[BaseModel]) -> bool:
    return any(
        _may_change(field) or any(_has_changeable_field(child) for child in models_in(field.annotation))
        for field in model.model_fields.values()
    )


def _may_change(field: FieldInfo) -> bool:
    """Return whether a field may change within a revision."""
    return EXTENDABLE in field.metadata or OPERATIONAL in field.metadata
