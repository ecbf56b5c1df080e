"""The CustomResourceDefinitions: schema, CEL rules, printer columns. Pure; `make crds` writes the result.

What pydantic checks when a resource is loaded, the API server checks at admission: types, bounds and choices
by the schema, the rest by CEL rules, which are next to the validators in the models. Rules that need more than
one field at a time are made here: options against the algorithm and each other, changes against the revision. What an
algorithm requires of `model` and `learners` is checked by the loader alone.

A field that takes a number or a list (a schedule) has no one type, so CEL does not know it: that it applies to the
algorithm is checked by the loader. A change of it is seen where the part around it is compared as a whole; the
spec hash sees the rest (`pipeline.connectors`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hindcast.api.base import CLASS_PATH, EXTENDABLE, FIXED, GROUP, OPERATIONAL, VERSION, Model, Rule
from hindcast.api.checks import REPLACED, STREAMED, UNFILTERED
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
    """Plural name -> CRD. `algorithms` maps names to the JSON schemas of their options (see `options`)."""
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
    always = {
        "State": ".status.state",
        "Algorithm": algorithm,
        "Progress": ".status.progress.summary",
        "Return": ".status.progress.episodeReturn",
        "Age": ".metadata.creationTimestamp",
    }
    if_wide = {"RayJob": ".status.rayJob", **result, "Message": ".status.message"}
    return [
        {"name": title, "type": "date" if title == "Age" else "string", "jsonPath": path}
        | ({"priority": 1} if title in if_wide else {})
        for title, path in (always | if_wide).items()
    ]


def _root(kind: Kind, algorithms: Mapping[str, Schema]) -> dict[str, Any]:
    schema = structural(kind.model_json_schema(by_alias=True))
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    usable = {name: options for name, options in algorithms.items() if kind.__name__ in options["x-kinds"]}
    owner = spec if kind is OfflineTraining else spec["properties"]["policy"]["properties"]["train"]
    owner["properties"]["config"] = _config(usable, owner["properties"]["config"]["description"])
    _add_rules(owner, _algorithm_rules(kind, usable, owner["properties"]["config"]))
    _add_rules(spec, _revision_rules(kind.model_fields["spec"].annotation, spec))
    # What the user left out must stay out: the platform's own defaults come in later.
    spec["properties"]["runPolicy"] = without_defaults(spec["properties"]["runPolicy"])
    # An object that no operator has seen yet must not read as finished.
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
    """The union of the algorithms' options. No defaults: they would make inapplicable fields appear."""
    fields: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    defaults: dict[str, dict[str, str]] = {}
    for name, options in algorithms.items():
        for field, part in options["properties"].items():
            fields.setdefault(field, []).append((name, without_defaults(structural(part))))
            if "default" in part:
                defaults.setdefault(field, {})[name] = _plain(part["default"])
    properties = {field: _common(variants) for field, variants in sorted(fields.items())}
    for field, texts in defaults.items():
        properties[field]["description"] += f" Default: {_by_algorithm(texts)}."
    return {"description": description, "type": "object", "properties": properties}


def _plain(default: Any) -> str:
    """A default as one writes it: `5` rather than `5.0`."""
    return default if isinstance(default, str) else re.sub(r"\.0\b", "", json.dumps(default))


def _by_algorithm(texts: Mapping[str, str]) -> str:
    """The one text, or each with the name of its algorithm."""
    same = set(texts.values())
    return same.pop() if len(same) == 1 else ", ".join(f"{name} {text}" for name, text in texts.items())


_SHAPE: Final = ("type", "properties", "items", "additionalProperties", "x-kubernetes-int-or-string", OPEN)
_BOUND_BY: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def _common(variants: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """What all algorithms agree on about a field; the loader checks the rest."""
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
    return {**shared, "description": _texts(variants)}


def _texts(variants: list[tuple[str, dict[str, Any]]]) -> str:
    """The description of a field; where algorithms describe it differently, each by name."""
    names_by_text: dict[str, list[str]] = {}
    for name, schema in variants:
        names_by_text.setdefault(schema.get("description", ""), []).append(name)
    if len(names_by_text) == 1:
        return next(iter(names_by_text))
    return " ".join(f"{', '.join(names)}: {text}" for text, names in names_by_text.items())


def _algorithm_rules(kind: Kind, algorithms: Mapping[str, Schema], config: Schema) -> Iterator[Rule]:
    yield _name_of_algorithm_rule(kind, list(algorithms))
    yield _sampler_rule(kind, [name for name, options in algorithms.items() if options.get("x-live")])
    for field, part in config["properties"].items():
        owners = [name for name, options in algorithms.items() if field in options["properties"]]
        if len(owners) < len(algorithms) and not _hidden(part):
            yield Rule(
                f"!has(self.config) || !has(self.config.{_cel(field)}) || self.algorithm in {owners}",
                f"'config.{field} does not apply to ' + self.algorithm + "
                f"'; it is a field of {', '.join(owners)}'",
                at=f".config.{field}",
                is_computed=True,
            )
    for name, options in algorithms.items():
        yield from _relation_rules(name, options)
    if kind is OfflineTraining:
        yield _FILTER_RULE
        yield from _PRIORITY_RULES


def _name_of_algorithm_rule(kind: Kind, names: list[str]) -> Rule:
    rule, usable = f"self.algorithm in {names}", ", ".join(names)
    if kind is OfflineTraining:
        rule += f" || self.algorithm.matches(r'{CLASS_PATH}')"
        usable += " or package.module:Class"
    found = f"'algorithm is ' + self.algorithm + ', which an {kind.__name__} cannot use; it can use {usable}'"
    return Rule(rule, found, at=".algorithm", is_computed=True)


def _sampler_rule(kind: Kind, names: list[str]) -> Rule:
    """Which algorithms learn from what their policy plays; a user's own says it when it is imported."""
    if kind is OfflineRecording:
        rule, place = f"!has(self.sampler) || self.algorithm in {names}", ".sampler"
    else:
        without, place = "self.input.all(source, !has(source.sampler))", ".input"
        rule = f"{without} || self.algorithm in {names} || self.algorithm.contains(':')"
    return Rule(rule, f"only {', '.join(names)} can learn from a sampler", at=place)


_CEL_RELATIONS: Final = {"x-at-most": "{} <= {}", "x-multiple-of": "{} % {} == 0"}


def _relation_rules(algorithm: str, options: Schema) -> Iterator[Rule]:
    """How an option bounds another one, whether they are given or have the algorithm's defaults."""

    def value(field: str) -> str:
        given = f"self.config.{_cel(field)}"
        return f"(has({given}) ? {given} : {options['properties'][field]['default']})"

    for field, part in options["properties"].items():
        for key, relation in _CEL_RELATIONS.items():
            if other := part.get(key):
                holds = relation.format(value(field), value(other))
                yield Rule(
                    f"self.algorithm != '{algorithm}' || !has(self.config) || {holds}",
                    f"config.{field} must be {RELATIONS[key][0]} {other}",
                    at=f".config.{field}",
                )


_FILTER_RULE: Final = Rule(
    "self.model.observationFilter != 'meanStd' || has(self.initialCheckpoint) || "
    "self.input.exists(source, !has(source.sampler))",
    f"model.observationFilter {UNFILTERED}",
    at=".model.observationFilter",
)
_NO_PRIORITIES: Final = (
    "!has(self.config) || !has(self.config.prioritizedReplay) || !self.config.prioritizedReplay || "
    "self.input.all(source, has(source.sampler))"
)
_PRIORITY_RULES: Final = tuple(
    Rule(
        f"{_NO_PRIORITIES} || self.pipeline.{field} != '{value}'",
        f"pipeline.{field} {message}",
        at=f".pipeline.{field}",
    )
    for field, value, message in (
        ("residency", "Streaming", STREAMED),
        ("sampling", "WithReplacement", REPLACED),
    )
)
"""What draws by priority needs of recorded data."""


_CEL_KEYWORDS: Final = re.compile(
    "true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return"
)


def _cel(field: str) -> str:
    """The field's name in CEL, where keywords are escaped."""
    return f"__{field}__" if _CEL_KEYWORDS.fullmatch(field) else field


# -- revisions ----------------------------------------------------------------------------------------------


def _revision_rules(model: Any, spec: Schema) -> Iterator[Rule]:
    yield Rule("self.revision >= oldSelf.revision", "revision never decreases", at=".revision")
    for path in _defining(model, spec):
        field = ".".join(path)
        yield Rule(
            f"self.revision > oldSelf.revision || {_unchanged(path, spec)}",
            f"{field} defines the run: it changes only with a higher revision",
            at=f".{field}",
        )


def _unchanged(path: tuple[str, ...], schema: Schema) -> str:
    """CEL: a field is what it was. (Optional types would say it shorter, at an unbounded cost.)"""
    guards, chain = [], ""
    for step in path:
        chain += f".{_cel(step)}"
        part = schema["properties"][step]
        if step not in schema.get("required", ()) and "default" not in part:
            guards.append(f"has(%s{chain})")
        schema = part
    same = f"self{chain} == oldSelf{chain}"
    if not guards:
        return same
    given = " && ".join(guards)
    now, before = given.replace("%s", "self"), given.replace("%s", "oldSelf")
    return f"(({now}) ? ({before}) && {same} : !({before}))"


def _defining(model: type[Model], schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The largest parts of the spec that define the run through and through, and that CEL can see."""
    for alias, field in named_fields(model).items():
        part = schema["properties"][alias]
        below = models_in(field.annotation)
        if EXTENDABLE in field.metadata:
            yield from _fixed(below[0], part, (*path, alias))  # type: ignore[arg-type]
        if _may_change(field) or _hidden(part):
            continue
        if len(below) == 1 and "properties" in part and _has_operational(below[0]):
            yield from _defining(below[0], part, (*path, alias))  # type: ignore[arg-type]
        else:
            yield (*path, alias)


def _fixed(model: type[Model], schema: Schema, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The parts of an extendable field that may not change all the same."""
    for alias, field in named_fields(model).items():
        if FIXED in field.metadata:
            yield (*path, alias)
        for below in models_in(field.annotation):
            yield from _fixed(below, schema["properties"][alias], (*path, alias))  # type: ignore[arg-type]


def _hidden(schema: Schema) -> bool:
    """Whether CEL does not know a field: it has no one type. (An open mapping can be compared as a whole.)"""
    if OPEN in schema and "type" not in schema:
        return True
    return isinstance(schema.get("items"), dict) and _hidden(schema["items"])


def _has_operational(model: type[BaseModel]) -> bool:
    return any(
        _may_change(field) or any(_has_operational(below) for below in models_in(field.annotation))
        for field in model.model_fields.values()
    )


def _may_change(field: FieldInfo) -> bool:
    """Whether a field's mark lets it change within a revision."""
    return EXTENDABLE in field.metadata or OPERATIONAL in field.metadata
