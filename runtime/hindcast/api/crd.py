"""The CustomResourceDefinitions: schema, CEL rules, printer columns. Pure; `make crds` writes the result.

The API server checks at admission what pydantic checks when a resource is loaded: types, bounds and choices by the
schema, the rest by CEL rules, which stand beside the validators in the models. Rules on several fields are built here:
options against the algorithm and each other, changes against the revision. Only the loader checks what an algorithm
requires of `model` and `learners`.

A field that takes a number or a list (a schedule) has no single type, so CEL cannot see it: only the loader checks that
it applies to the algorithm. A rule that compares the part around it as a whole notices a change of it; otherwise
(`pipeline.connectors`) only the spec hash does.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hindcast.api.base import CLASS_PATH, EXTENDABLE, FIXED, GROUP, OPERATIONAL, VERSION, Model, Rule
from hindcast.api.checks import NO_FILTER_STATISTICS, PRIORITIES_WITH_REPLACEMENT, PRIORITIES_WITH_STREAMING
from hindcast.api.metadata import NAME_LIMIT, NAME_PATTERN
from hindcast.api.option_types import RELATIONS
from hindcast.api.recording import OfflineRecording
from hindcast.api.sentences import models_in, named_fields
from hindcast.api.structural import OPEN, Schema, structural, without_defaults
from hindcast.api.training import OfflineTraining

Kind = type[OfflineRecording] | type[OfflineTraining]

KINDS: Final[dict[Kind, tuple[str, str]]] = {
    OfflineRecording: ("offlinerecordings", "orec"),
    OfflineTraining: ("offlinetrainings", "otr"),
}


def custom_resource_definitions(algorithms: Mapping[str, Schema]) -> dict[str, dict[str, Any]]:
    """Map plural names to CRDs. `algorithms` maps names to the JSON schemas of their options (see `options`)."""
    return {plural: _definition(kind, plural, short, algorithms) for kind, (plural, short) in KINDS.items()}


def _definition(kind: Kind, plural: str, short: str, algorithms: Mapping[str, Schema]) -> dict[str, Any]:
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
                "shortNames": [short],
                "categories": ["hindcast"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(kind),
                    "selectableFields": _selectable_fields(kind),
                    "schema": {"openAPIV3Schema": _root(kind, algorithms)},
                }
            ],
        },
    }


def _columns(kind: Kind) -> list[dict[str, Any]]:
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
    algorithm = ".spec.algorithm" if kind is OfflineTraining else ".spec.policy.train.algorithm"
    paths = (".status.state", ".spec.suspend", algorithm, ".spec.cluster.scheduling.queueName")
    return [{"jsonPath": path} for path in paths]


def _root(kind: Kind, algorithms: Mapping[str, Schema]) -> dict[str, Any]:
    schema = structural(kind.model_json_schema(by_alias=True))
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    usable = {name: options for name, options in algorithms.items() if kind.__name__ in options["x-kinds"]}
    owner = spec if kind is OfflineTraining else spec["properties"]["policy"]["properties"]["train"]
    owner["properties"]["config"] = _config(usable, owner["properties"]["config"]["description"])
    _add_rules(owner, _algorithm_rules(kind, usable, owner["properties"]["config"]))
    _add_rules(spec, _revision_rules(kind.model_fields["spec"].annotation, spec))
    _describe_defaults(spec)
    # Defaults here would hide what the user left out, which the platform's own defaults fill in later.
    spec["properties"]["runPolicy"] = without_defaults(spec["properties"]["runPolicy"])
    # kstatus (Flux, Helm 4, Argo CD) takes an object without conditions for finished, unless this differs from its
    # generation.
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
        "x-kubernetes-validations": [_NAME_RULE.validation()],
    }


_NAME_RULE: Final = Rule(
    f"self.metadata.name.size() <= {NAME_LIMIT} && self.metadata.name.matches('{NAME_PATTERN}')",
    f"metadata.name: at most {NAME_LIMIT} lower-case letters, digits and '-' are allowed, "
    "beginning with a letter and not ending with '-'",
)


def _add_rules(schema: dict[str, Any], rules: Iterable[Rule]) -> None:
    schema.setdefault("x-kubernetes-validations", []).extend(rule.validation() for rule in rules)


# -- options ------------------------------------------------------------------------------------------------


def _config(algorithms: Mapping[str, Schema], description: str) -> dict[str, Any]:
    """Return the union of the algorithms' options, without defaults: these would add inapplicable fields."""
    fields: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    defaults: dict[str, dict[str, str]] = {}
    for name, options in algorithms.items():
        for field, part in options["properties"].items():
            fields.setdefault(field, []).append((name, without_defaults(structural(part))))
            if "default" in part:
                defaults.setdefault(field, {})[name] = _default_text(part["default"])
    properties = {field: _merge_variants(variants) for field, variants in sorted(fields.items())}
    for field, texts in defaults.items():
        properties[field]["description"] += f" Default: {_defaults_text(texts)}."
    return {"description": description, "type": "object", "properties": properties}


def _describe_defaults(schema: dict[str, Any]) -> None:
    """End the description of each field below that has a default with it, in place."""
    for part in schema.get("properties", {}).values():
        if "default" in part and "properties" not in part and "Default:" not in part["description"]:
            part["description"] += f" Default: {_default_text(part['default'])}."
        _describe_defaults(part)
        _describe_defaults(part.get("items", {}))


def _default_text(default: Any) -> str:
    """Write a default as a person would: `5` rather than `5.0`."""
    return (default or '""') if isinstance(default, str) else re.sub(r"\.0\b", "", json.dumps(default))


def _defaults_text(texts: Mapping[str, str]) -> str:
    """Return the common text, or each text after the name of its algorithm."""
    same = set(texts.values())
    return same.pop() if len(same) == 1 else ", ".join(f"{name} {text}" for name, text in texts.items())


_SHAPE: Final = ("type", "properties", "items", "additionalProperties", "x-kubernetes-int-or-string", OPEN)
_BOUND_BY: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def _merge_variants(variants: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Merge an option's schemas into what all algorithms agree on; the loader checks the rest."""
    schemas = [schema for _, schema in variants]
    first = schemas[0]
    shared: dict[str, Any] = {OPEN: True}
    if all(schema.get(key) == first.get(key) for schema in schemas for key in _SHAPE):
        shared = {key: value for key, value in first.items() if all(s.get(key) == value for s in schemas)}
    for exclusive, bound in _BOUND_BY.items():
        if bound not in shared:
            shared.pop(exclusive, None)
    if any(schema.get("nullable") for schema in schemas):
        shared["nullable"] = True
    return {**shared, "description": _merge_descriptions(variants)}


def _merge_descriptions(variants: list[tuple[str, dict[str, Any]]]) -> str:
    """Return the description of an option, or each algorithm's after its name if they differ."""
    names_by_text: dict[str, list[str]] = {}
    for name, schema in variants:
        names_by_text.setdefault(schema.get("description", ""), []).append(name)
    if len(names_by_text) == 1:
        return next(iter(names_by_text))
    return " ".join(f"{', '.join(names)}: {text}" for text, names in names_by_text.items())


def _algorithm_rules(kind: Kind, algorithms: Mapping[str, Schema], config: Schema) -> Iterator[Rule]:
    yield _algorithm_name_rule(kind, list(algorithms))
    yield _sampler_rule(kind, [name for name, options in algorithms.items() if options.get("x-live")])
    for field, part in config["properties"].items():
        owners = [name for name, options in algorithms.items() if field in options["properties"]]
        if len(owners) < len(algorithms) and not _is_hidden_from_cel(part):
            yield Rule(
                f"!has(self.config) || !has(self.config.{_cel_name(field)}) || self.algorithm in {owners}",
                f"'config.{field} does not apply to ' + self.algorithm + "
                f"'; it is a field of {', '.join(owners)}'",
                field_path=f".config.{field}",
                is_computed=True,
            )
    for name, options in algorithms.items():
        yield from _relation_rules(name, options)
    if kind is OfflineTraining:
        yield _FILTER_RULE
        yield from _PRIORITY_RULES


def _algorithm_name_rule(kind: Kind, names: list[str]) -> Rule:
    rule, usable = f"self.algorithm in {names}", ", ".join(names)
    if kind is OfflineTraining:
        rule += f" || self.algorithm.matches(r'{CLASS_PATH}')"
        usable += " or package.module:Class"
    message = (
        f"'algorithm is ' + self.algorithm + ', which an {kind.__name__} cannot use; it can use {usable}'"
    )
    return Rule(rule, message, field_path=".algorithm", is_computed=True)


def _sampler_rule(kind: Kind, names: list[str]) -> Rule:
    """Return the rule on which algorithms can use a sampler; a custom one is checked when it is imported."""
    if kind is OfflineRecording:
        rule, place = f"!has(self.sampler) || self.algorithm in {names}", ".sampler"
    else:
        without, place = "self.input.all(source, !has(source.sampler))", ".input"
        rule = f"{without} || self.algorithm in {names} || self.algorithm.contains(':')"
    return Rule(rule, f"only {', '.join(names)} can learn from a sampler", field_path=place)


_CEL_RELATIONS: Final = {"x-at-most": "{} <= {}", "x-multiple-of": "{} % {} == 0"}


def _relation_rules(algorithm: str, options: Schema) -> Iterator[Rule]:
    """Yield the rules by which an option bounds another; an option that is not set has its default."""

    def value(field: str) -> str:
        option = f"self.config.{_cel_name(field)}"
        return f"(has({option}) ? {option} : {options['properties'][field]['default']})"

    for field, part in options["properties"].items():
        for key, relation in _CEL_RELATIONS.items():
            if bounding_option := part.get(key):
                holds = relation.format(value(field), value(bounding_option))
                yield Rule(
                    f"self.algorithm != '{algorithm}' || !has(self.config) || {holds}",
                    f"config.{field} must be {RELATIONS[key][0]} {bounding_option}",
                    field_path=f".config.{field}",
                )


_FILTER_RULE: Final = Rule(
    "self.model.observationFilter != 'MeanStd' || has(self.initialCheckpoint) || "
    "self.input.exists(source, !has(source.sampler))",
    f"model.observationFilter {NO_FILTER_STATISTICS}",
    field_path=".model.observationFilter",
)
_NO_PRIORITIES: Final = (
    "!has(self.config) || !has(self.config.prioritizedReplay) || !self.config.prioritizedReplay || "
    "self.input.all(source, has(source.sampler))"
)
_PRIORITY_RULES: Final = tuple(
    Rule(
        f"{_NO_PRIORITIES} || self.pipeline.{field} != '{value}'",
        f"pipeline.{field} {message}",
        field_path=f".pipeline.{field}",
    )
    for field, value, message in (
        ("residency", "Streaming", PRIORITIES_WITH_STREAMING),
        ("sampling", "WithReplacement", PRIORITIES_WITH_REPLACEMENT),
    )
)
"""Requirements of prioritised replay on the pipeline of recorded data."""


_CEL_KEYWORDS: Final = re.compile(
    "true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return"
)


def _cel_name(field: str) -> str:
    """Return the field's name in CEL, which escapes keywords."""
    return f"__{field}__" if _CEL_KEYWORDS.fullmatch(field) else field


# -- revisions ----------------------------------------------------------------------------------------------


def _revision_rules(model: Any, spec: Schema) -> Iterator[Rule]:
    yield Rule("self.revision >= oldSelf.revision", "revision never decreases", field_path=".revision")
    for path in _defining_paths(model, spec):
        field = ".".join(path)
        yield Rule(
            f"self.revision > oldSelf.revision || {_unchanged_rule(path, spec)}",
            f"{field} defines the run: it changes only with a higher revision",
            field_path=f".{field}",
        )


def _unchanged_rule(path: tuple[str, ...], schema: Schema) -> str:
    """Return a CEL expression that a field has not changed."""
    # Optional types would be shorter, but their cost is unbounded for the API server.
    guards, chain = [], ""
    for step in path:
        chain += f".{_cel_name(step)}"
        part = schema["properties"][step]
        if step not in schema.get("required", ()) and "default" not in part:
            guards.append(f"has(%s{chain})")
        schema = part
    same = f"self{chain} == oldSelf{chain}"
    if not guards:
        return same
    is_set = " && ".join(guards)
    now, before = is_set.replace("%s", "self"), is_set.replace("%s", "oldSelf")
    return f"(({now}) ? ({before}) && {same} : !({before}))"


def _defining_paths(
    model: type[Model], schema: Schema, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the largest parts of the spec that entirely define the run and that CEL can see."""
    for alias, field in named_fields(model).items():
        part = schema["properties"][alias]
        below = models_in(field.annotation)
        if EXTENDABLE in field.metadata:
            yield from _fixed_paths(below[0], part, (*path, alias))  # type: ignore[arg-type]
        if _may_change(field) or _is_hidden_from_cel(part):
            continue
        if len(below) == 1 and "properties" in part and _has_operational(below[0]):
            yield from _defining_paths(below[0], part, (*path, alias))  # type: ignore[arg-type]
        else:
            yield (*path, alias)


def _fixed_paths(model: type[Model], schema: Schema, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the fixed fields inside an extendable one."""
    for alias, field in named_fields(model).items():
        if FIXED in field.metadata:
            yield (*path, alias)
        for below in models_in(field.annotation):
            yield from _fixed_paths(below, schema["properties"][alias], (*path, alias))  # type: ignore[arg-type]


def _is_hidden_from_cel(schema: Schema) -> bool:
    """Return whether CEL cannot see a field, since it has several types. (It can compare an open mapping.)"""
    if OPEN in schema and "type" not in schema:
        return True
    return isinstance(schema.get("items"), dict) and _is_hidden_from_cel(schema["items"])


def _has_operational(model: type[BaseModel]) -> bool:
    return any(
        _may_change(field) or any(_has_operational(below) for below in models_in(field.annotation))
        for field in model.model_fields.values()
    )


def _may_change(field: FieldInfo) -> bool:
    """Return whether a field may change within a revision."""
    return EXTENDABLE in field.metadata or OPERATIONAL in field.metadata
