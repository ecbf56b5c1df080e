"""List breaking changes of CRDs since the last release: within v1alpha1 they may only gain optional fields.

    python tools/crd_changes.py tests/charts/released crds

The newer CRD must accept every object that the older one accepts, with the same meaning. The command prints one line
for each change that breaks this, and exits with 1.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from operator import gt as _is_more
from operator import lt as _is_less
from operator import ne as _is_other
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

Schema = Mapping[str, Any]

_MINIMA = ("minimum", "minLength", "minItems", "minProperties")
_MAXIMA = ("maximum", "maxLength", "maxItems", "maxProperties")
_TYPE_BY_BOUND = {"Items": "array", "Properties": "object", "Length": "string", "pattern": "string"}
"""Ending of a keyword -> the only type that it applies to."""
_NARROWING = ("pattern", "format", "multipleOf", "uniqueItems", "exclusiveMinimum", "exclusiveMaximum")
"""Keywords that narrow a field if they are new or change."""
_MERGING = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type")
"""Keywords for merging in server-side apply; any change may lose fields that other clients own."""
_OPEN = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_RULES = "x-kubernetes-validations"
_NEVER_EXECUTED = re.compile(r"has\((self|source)\.sampler\)|self\.config\.minibatchSize\b")
"""Fields in rules on features that no release executes: objects that break such rules fail before they do anything."""
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'")
_ONE_OF = re.compile(r"\[((?:has\(self\.\w+\)(?:, )?)+)\]\.exists\(given, given\)")
"""A rule that requires at least one of some fields."""
_ALGORITHMS = re.compile(r"self\.algorithm in \[([^\]]*)\]")
_ALGORITHM_NAMES = re.compile(rf"\(+has\(self\.algorithm\) && {_ALGORITHMS.pattern}\)")
"""Beginning of the rule on the algorithm's name, which lists all algorithms."""
_EXCEPT_ALGORITHMS = re.compile(rf"!\(has\(self\.algorithm\) && {_ALGORITHMS.pattern}\)")
"""A condition that holds except for these algorithms."""
_ONLY_ALGORITHMS = re.compile(rf"\(.* \|\| \(has\(self\.algorithm\) && {_ALGORITHMS.pattern}\)\)")
"""A rule that these algorithms do not break."""


def find_breaking_changes(old: Schema, new: Schema) -> list[str]:
    """List the changes of a CustomResourceDefinition that break existing objects or clients, one line each."""
    kind = old["spec"]["names"]["kind"]
    return [
        f"{kind}: {line}" for line in (*_name_changes(old["spec"], new["spec"]), *_version_changes(old, new))
    ]


def _name_changes(old: Schema, new: Schema) -> Iterator[str]:
    for key in ("group", "scope"):
        if old[key] != new[key]:
            yield f"{key} was {old[key]}, is {new[key]}"
    for key, value in old["names"].items():
        new_value = new["names"].get(key)
        if new_value != value and not (isinstance(value, list) and set(value) <= set(new_value or ())):
            yield f"names.{key} was {value}, is {new_value}"


def _version_changes(old: Schema, new: Schema) -> Iterator[str]:
    versions = {version["name"]: version for version in new["spec"]["versions"]}
    for version in old["spec"]["versions"]:
        name = version["name"]
        new_version = versions.get(name)
        if new_version is None or (version["served"] and not new_version["served"]):
            yield f"version {name} is no longer served"
            continue
        for subresource in set(version.get("subresources", {})) - set(new_version.get("subresources", {})):
            yield f"{name}: the subresource {subresource} was removed"
        before, after = (entry["schema"]["openAPIV3Schema"] for entry in (version, new_version))
        yield from _schema_changes(before, after, ())


def _schema_changes(old: Schema, new: Schema, path: tuple[str, ...]) -> Iterator[str]:
    """Yield breaking changes of a field, of the fields below it, and of its rules."""
    for line in (*_type_changes(old, new), *_value_changes(old, new), *_rule_changes(old, new)):
        yield f"{'.'.join(path) or 'the object'}: {line}"
    if path[:1] != ("status",) and old.get("default") != new.get("default"):
        yield f"{'.'.join(path)}: its default was {old.get('default')}, is {new.get('default')}"
    yield from _field_changes(old, new, path)
    for key, path_element in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(old.get(key), Mapping) and isinstance(new.get(key), Mapping):
            yield from _schema_changes(old[key], new[key], (*path, path_element))
        elif old.get(key) != new.get(key) and not new.get(_OPEN):
            yield f"{'.'.join((*path, path_element))}: what it may hold has changed"


def _field_changes(old: Schema, new: Schema, path: tuple[str, ...]) -> Iterator[str]:
    before, after = old.get("properties", {}), new.get("properties", {})
    for name in before:
        if name in after:
            yield from _schema_changes(before[name], after[name], (*path, name))
        elif not new.get(_OPEN):
            yield f"{'.'.join((*path, name))}: the field was removed"
    for name in set(new.get("required", ())) - set(old.get("required", ())):
        yield f"{'.'.join((*path, name))}: {'it' if name in before else 'a new field'} is required now"


def _type_changes(old: Schema, new: Schema) -> Iterator[str]:
    if new.get(_OPEN) and "type" not in new:
        return  # the field accepts any value
    if old.get(_OPEN) and not new.get(_OPEN):
        yield "took anything, does not now"
    elif old.get(_INT_OR_STRING) != new.get(_INT_OR_STRING) or old.get("type") != new.get("type"):
        yield f"its type was {_format_type(old)}, is {_format_type(new)}"
    if old.get("nullable") and not new.get("nullable"):
        yield "null is refused now"


def _format_type(schema: Schema) -> str:
    return "integer or string" if schema.get(_INT_OR_STRING) else str(schema.get("type"))


def _value_changes(old: Schema, new: Schema) -> Iterator[str]:
    if "enum" in new and (
        removed_values := [v for v in old.get("enum", ["anything"]) if v not in new["enum"]]
    ):
        yield f"{', '.join(map(str, removed_values))} was allowed, is refused"
    for keys, is_narrower in ((_MINIMA, _is_more), (_MAXIMA, _is_less), (_NARROWING, _is_other)):
        for key in keys:
            if key in new and _is_bounded(key, old) and (key not in old or is_narrower(new[key], old[key])):
                yield f"its {key} was {old.get(key)}, is {new[key]}"
    for key in _MERGING:
        if old.get(key) != new.get(key):
            yield f"its {key} was {old.get(key)}, is {new.get(key)}"


def _is_bounded(key: str, old: Schema) -> bool:
    """Return True if a bound applies to the type that a field had, or if the field had several types."""
    bounded_type = next((kind for ending, kind in _TYPE_BY_BOUND.items() if key.endswith(ending)), None)
    return bounded_type is None or old.get("type", bounded_type) == bounded_type


def _rule_changes(old: Schema, new: Schema) -> Iterator[str]:
    before = [rule["rule"] for rule in old.get(_RULES, ())]
    old_names = next((_names(match[1]) for text in before if (match := _ALGORITHM_NAMES.match(text))), None)
    for rule in new.get(_RULES, ()):
        text = rule["rule"]
        if (
            text in before
            or _NEVER_EXECUTED.search(text)
            or any(_widens(text, older_rule, old_names) for older_rule in before)
        ):
            continue
        if _concerns_new_field(rule.get("fieldPath", ""), old) or _spares_algorithms(text, old_names):
            continue
        yield f"a new rule: {text}"


def _widens(new: str, old: str, old_names: set[str] | None) -> bool:
    """Return True if a rule is an older one with an alternative, more fields to choose from, or other algorithms.

    These are more algorithms that it allows, or fewer of `old_names`, the older algorithms, that it concerns.
    """
    if new.startswith(f"({old}) || "):
        return True
    if (fields := _ONE_OF.fullmatch(old)) and (more := _ONE_OF.fullmatch(new)):
        return set(fields[1].split(", ")) <= set(more[1].split(", "))
    if _ALGORITHMS.sub("", new) != _ALGORITHMS.sub("", old):
        return False
    exceptions = (_EXCEPT_ALGORITHMS.findall(old), _EXCEPT_ALGORITHMS.findall(new))
    pairs = zip(
        _ALGORITHMS.findall(_EXCEPT_ALGORITHMS.sub("", old)),
        _ALGORITHMS.findall(_EXCEPT_ALGORITHMS.sub("", new)),
        strict=False,
    )
    return all(_names(before) <= _names(after) for before, after in pairs) and all(
        _names(after) & (old_names or _names(after)) <= _names(before)
        for before, after in zip(*exceptions, strict=False)
    )


def _names(texts: str) -> set[str]:
    """Return the texts in quotes."""
    return set(_QUOTED.findall(texts))


def _concerns_new_field(field_path: str, old: Schema) -> bool:
    """Return True if a rule is about a field that no older object can have."""
    schema: Any = old
    for name in filter(None, field_path.split(".")):
        schema = schema.get("properties", {}).get(name)
        if schema is None:
            return True
    return False


def _spares_algorithms(rule: str, old_names: set[str] | None) -> bool:
    """Return True if a rule allows all algorithms of the old CRD, or concerns none: no older object breaks it."""
    if old_names is None:
        return False
    if match := _ONLY_ALGORITHMS.fullmatch(rule):
        return old_names <= _names(match[1])
    match = _EXCEPT_ALGORITHMS.match(rule, 1)
    is_alternative = match is not None and rule[match.end() :].startswith(" || ")
    return match is not None and is_alternative and old_names.isdisjoint(_names(match[1]))


def read_crds(folder: Path) -> dict[str, Any]:
    """Return the CRDs of a folder, by name."""
    yaml = YAML(typ="safe", pure=True)
    definitions = [yaml.load(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.yaml"))]
    return {crd["metadata"]["name"]: crd for crd in definitions}


def compare_folders(old: Path, new: Path) -> list[str]:
    """List the breaking changes of all CRDs of a folder, including removed ones."""
    before, after = read_crds(old), read_crds(new)
    removals = [f"{name} was removed" for name in before if name not in after]
    return removals + [
        line for name in before if name in after for line in find_breaking_changes(before[name], after[name])
    ]


if __name__ == "__main__":
    lines = compare_folders(Path(sys.argv[1]), Path(sys.argv[2]))
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))
