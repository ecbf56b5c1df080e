"""Which fields of the resources the code reads, found in its syntax trees.

Names get types where the code says them: parameters and attributes by their annotations, variables and loops by
what is assigned, calls by what the function is annotated to return. A read is an attribute of an expression whose
type is one of the resources' models, so that `memory` of a runner is not taken for `memory` of a learner.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

Kind = type[BaseModel]
Kinds = frozenset[Kind]
NONE: Kinds = frozenset()

_MENTION = re.compile(r"hindcast\.api|\bspec\b")


def models_in(annotation: object) -> Iterator[Kind]:
    """The models that an annotation names, whatever contains them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def fields_below(model: Kind, path: str = "") -> Iterator[tuple[str, Kind, str]]:
    """(path by YAML names, model, field) of all leaves below a model."""
    for name, field in model.model_fields.items():
        field_path = f"{path}.{field.alias or name}" if path else str(field.alias or name)
        inner = list(models_in(field.annotation))
        if not inner or inner[0].__module__.endswith(".spaces"):  # a space is taken as a whole
            yield field_path, model, name
            continue
        for kind in inner:
            yield from fields_below(kind, field_path) if kind.model_fields else [(field_path, model, name)]


def parse_readers(sources: Iterable[Path]) -> dict[Path, ast.Module]:
    """The files that could read a field."""
    texts = {path: path.read_text() for path in sources}
    return {path: ast.parse(text) for path, text in texts.items() if _MENTION.search(text)}


class Readers:
    """Reads of fields in a code base.

    Args:
        roots: the models whose parts count.
        trees: the code that may read them, parsed.
        own: the models' own code; only what their properties read counts, where these are read.

    Attributes:
        read: (model, field) that something reads.
    """

    def __init__(
        self, roots: Iterable[Kind], trees: Sequence[ast.Module], model_trees: Sequence[ast.Module]
    ) -> None:
        self.read: set[tuple[Kind, str]] = set()
        self._kinds = {kind.__name__: kind for root in roots for kind in _models_below(root)}
        self._roots = frozenset(roots)
        self._aliases: dict[str, Kinds] = {}
        self._returns: dict[str, Kinds] = defaultdict(frozenset)
        self._dumping: set[str] = set()
        self._attributes: dict[str, Kinds] = defaultdict(frozenset)
        self._properties = dict(_properties(model_trees, self._kinds))
        for tree in (*model_trees, *trees):
            self._find_aliases(tree)
        for tree in trees:
            self._declarations(tree)
        for _ in range(2):  # what an attribute is may be said further down, or in another file
            for tree in trees:
                self._Walk(self, {}).body(tree.body)

    def _find_aliases(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.BinOp | ast.Subscript):
                self._aliases |= {
                    each.id: self.models_named(node.value)
                    for each in node.targets
                    if isinstance(each, ast.Name)
                }

    def _declarations(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                self._returns[node.name] |= self.models_named(node.returns)
                if _dumps_an_argument(node):
                    self._dumping.add(node.name)
                if any(isinstance(each, ast.Name) and "property" in each.id for each in node.decorator_list):
                    self._attributes[node.name] |= self.models_named(node.returns)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self._attributes[node.target.id] |= self.models_named(node.annotation)

    def models_named(self, annotation: ast.expr | None) -> Kinds:
        """The models that an annotation's text names."""
        models: set[Kind] = set()
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                models |= {self._kinds[node.value]} if node.value in self._kinds else NONE
            name = (
                node.id
                if isinstance(node, ast.Name)
                else node.attr
                if isinstance(node, ast.Attribute)
                else ""
            )
            models |= {self._kinds[name]} if name in self._kinds else self._aliases.get(name, NONE)
        return frozenset(models)

    def attribute(self, kinds: Kinds, name: str) -> Kinds:
        """The type of an attribute of these models; that it is read is noted."""
        models: set[Kind] = set()
        for kind in kinds:
            if name in kind.model_fields:
                self.read.add((kind, name))
                models.update(models_in(kind.model_fields[name].annotation))
            elif name in self._properties.get(kind, {}):
                self._Walk(self, {"self": frozenset({kind})}).body(self._properties[kind][name].body)
                models |= self.models_named(self._properties[kind][name].returns)
        return frozenset(models)

    def mark_all_fields(self, kinds: Kinds) -> None:
        """All of these models are read; a resource as a whole is only passed on."""
        for kind in kinds - self._roots:
            for _, inner, name in fields_below(kind):
                self.read.add((inner, name))

    class _Walk:
        """One scope: the types of its names."""

        def __init__(self, readers: Readers, names: dict[str, Kinds]) -> None:
            self._readers = readers
            self._names = names

        def body(self, statements: Iterable[ast.stmt]) -> None:
            for statement in statements:
                self._statement(statement)

        def _statement(self, node: ast.AST) -> None:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                argument_kinds = {each.arg: self._readers.models_named(each.annotation) for each in arguments}
                type(self)(self._readers, {**self._names, **argument_kinds}).body(node.body)
            elif isinstance(node, ast.ClassDef):
                type(self)(self._readers, dict(self._names)).body(node.body)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, ast.For):
                self._bind(node.target, self.kinds(node.iter))
                self.body([*node.body, *node.orelse])
            else:
                for _, value in ast.iter_fields(node):
                    for each in value if isinstance(value, list) else [value]:
                        if isinstance(each, ast.expr):
                            self.kinds(each)
                        elif isinstance(each, ast.AST):
                            self._statement(each)

        def _assign(self, target: ast.expr, value: ast.expr) -> None:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                for left, right in zip(target.elts, value.elts, strict=True):
                    self._assign(left, right)
            else:
                self._bind(target, self.kinds(value))

        def _bind(self, target: ast.expr, kinds: Kinds) -> None:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    self._names[node.id] = kinds
                elif isinstance(node, ast.Attribute):
                    self._readers._attributes[node.attr] |= kinds

        def kinds(self, node: ast.expr) -> Kinds:
            """The models that an expression may be, or may hold."""
            if isinstance(node, ast.Name):
                return self._names.get(node.id, NONE)
            if isinstance(node, ast.Attribute):
                base = self.kinds(node.value)
                return (
                    self._readers.attribute(base, node.attr) if base else self._readers._attributes[node.attr]
                )
            if isinstance(node, ast.Call):
                return self._call(node)
            if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
                return self._comprehension(node)
            parts = [self.kinds(each) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
            return NONE if isinstance(node, ast.Compare | ast.Lambda) else frozenset().union(*parts)

        def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Kinds:
            for part in node.generators:
                self._bind(part.target, self.kinds(part.iter))
                for condition in part.ifs:
                    self.kinds(condition)
            elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            return frozenset().union(*map(self.kinds, elements))

        def _call(self, node: ast.Call) -> Kinds:
            argument_kinds = [
                self.kinds(each) for each in (*node.args, *(each.value for each in node.keywords))
            ]
            function = node.func
            if isinstance(function, ast.Attribute):
                base = self.kinds(function.value)
                if function.attr in ("model_dump", "model_dump_json"):
                    self._readers.mark_all_fields(base)
                if function.attr in ("model_copy", "values", "items", "get"):
                    return base
                return self._readers._returns[function.attr]
            name = function.id if isinstance(function, ast.Name) else ""
            if name in self._readers._dumping:
                self._readers.mark_all_fields(frozenset().union(*argument_kinds))
            if name == "getattr" and not isinstance(node.args[1], ast.Constant):
                self._readers.mark_all_fields(argument_kinds[0])
            if name in self._readers._kinds:
                return frozenset({self._readers._kinds[name]})
            if name in (
                "enumerate",
                "zip",
                "list",
                "tuple",
                "sorted",
                "reversed",
                "replace",
                "next",
                "cast",
                "set",
            ):
                return frozenset().union(*argument_kinds)
            return self._readers._returns[name]


def _models_below(model: Kind) -> set[Kind]:
    models, waiting = {model}, [model]
    while waiting:
        fields = waiting.pop().model_fields.values()
        inner = {
            kind for field in fields for kind in models_in(field.annotation)
        } - models  # spaces hold spaces
        models |= inner
        waiting += inner
    return models


def _dumps_an_argument(function: ast.FunctionDef) -> bool:
    names = {each.arg for each in function.args.args}
    dumped_values = (
        each.value
        for each in ast.walk(function)
        if isinstance(each, ast.Attribute) and each.attr == "model_dump"
    )
    return any(isinstance(each, ast.Name) and each.id in names for each in dumped_values)


def _properties(
    model_trees: Iterable[ast.Module], kinds: dict[str, Kind]
) -> Iterator[tuple[Kind, dict[str, ast.FunctionDef]]]:
    for tree in model_trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in kinds:
                properties = [
                    each for each in node.body if isinstance(each, ast.FunctionDef) and each.decorator_list
                ]
                yield kinds[node.name], {each.name: each for each in properties}
