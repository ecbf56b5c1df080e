"""Find the fields of the resources that the code reads, in its syntax trees.

A parameter or attribute has its annotation as its type, a variable the type of the assigned value, and a call the
function's return annotation. A read is an attribute of an expression that has one of the resources' models
as its type, so `memory` of a runner is not mistaken for `memory` of a learner.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

ModelClass = type[BaseModel]
ModelClasses = frozenset[ModelClass]
NO_MODELS: ModelClasses = frozenset()

_MENTION = re.compile(r"hindcast\.api|\bspec\b")
"""Text that every file contains that reads a field; other files are not parsed."""


def models_in(annotation: object) -> Iterator[ModelClass]:
    """Yield the models that an annotation (a type) names, also within containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def leaf_fields(model: ModelClass, path: str = "") -> Iterator[tuple[str, ModelClass, str]]:
    """Yield (path by YAML names, model, field) of all leaves of a model."""
    for name, field in model.model_fields.items():
        field_path = f"{path}.{field.alias or name}" if path else str(field.alias or name)
        child_models = list(models_in(field.annotation))
        if not child_models or child_models[0].__module__.endswith(".spaces"):  # a space counts as one field
            yield field_path, model, name
            continue
        for child in child_models:
            yield from leaf_fields(child, field_path) if child.model_fields else [(field_path, model, name)]


def parse_readers(sources: Iterable[Path]) -> dict[Path, ast.Module]:
    """Parse the files that may read a field; return path -> syntax tree."""
    texts = {path: path.read_text() for path in sources}
    return {path: ast.parse(text) for path, text in texts.items() if _MENTION.search(text)}


class Readers:
    """Reads of fields in a code base.

    Args:
        roots: the models to which the fields belong, directly or in nested models.
        trees: the code that may read them.
        model_trees: the code of the models. Reads in a property count if other code reads the property.

    Attributes:
        read_fields: the fields that are read, as (model, field).
    """

    def __init__(
        self, roots: Iterable[ModelClass], trees: Sequence[ast.Module], model_trees: Sequence[ast.Module]
    ) -> None:
        self.read_fields: set[tuple[ModelClass, str]] = set()
        self._models = {model.__name__: model for root in roots for model in _models_below(root)}
        self._roots = frozenset(roots)
        self._aliases: dict[str, ModelClasses] = {}
        self._returns: dict[str, ModelClasses] = defaultdict(frozenset)
        self._dumping_functions: set[str] = set()
        self._attributes: dict[str, ModelClasses] = defaultdict(frozenset)
        self._properties = dict(_iterate_properties(model_trees, self._models))
        for tree in (*model_trees, *trees):
            self._read_aliases(tree)
        for tree in trees:
            self._read_declarations(tree)
        for _ in range(2):  # the type of an attribute may follow later, or in another file
            for tree in trees:
                self._Scope(self, {}).visit(tree.body)

    def _read_aliases(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.BinOp | ast.Subscript):
                self._aliases |= {
                    target.id: self.models_named(node.value)
                    for target in node.targets
                    if isinstance(target, ast.Name)
                }

    def _read_declarations(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                self._returns[node.name] |= self.models_named(node.returns)
                if _calls_model_dump_of_argument(node):
                    self._dumping_functions.add(node.name)
                if any(
                    isinstance(decorator, ast.Name) and "property" in decorator.id
                    for decorator in node.decorator_list
                ):
                    self._attributes[node.name] |= self.models_named(node.returns)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self._attributes[node.target.id] |= self.models_named(node.annotation)

    def models_named(self, annotation: ast.expr | None) -> ModelClasses:
        """Return the models that the source of an annotation names."""
        models: set[ModelClass] = set()
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                models |= {self._models[node.value]} if node.value in self._models else NO_MODELS
            name = (
                node.id
                if isinstance(node, ast.Name)
                else node.attr
                if isinstance(node, ast.Attribute)
                else ""
            )
            models |= {self._models[name]} if name in self._models else self._aliases.get(name, NO_MODELS)
        return frozenset(models)

    def read_attribute(self, owners: ModelClasses, name: str) -> ModelClasses:
        """Mark an attribute of these models as read, and return the models that it may be or contain."""
        models: set[ModelClass] = set()
        for owner in owners:
            if name in owner.model_fields:
                self.read_fields.add((owner, name))
                models.update(models_in(owner.model_fields[name].annotation))
            elif name in self._properties.get(owner, {}):
                self._Scope(self, {"self": frozenset({owner})}).visit(self._properties[owner][name].body)
                models |= self.models_named(self._properties[owner][name].returns)
        return frozenset(models)

    def mark_all_fields(self, models: ModelClasses) -> None:
        """Mark all fields of these models as read, except if they are roots: a whole resource is only passed on."""
        for model in models - self._roots:
            for _, child, name in leaf_fields(model):
                self.read_fields.add((child, name))

    class _Scope:
        """Visits the statements of one scope, and tracks the models of its names."""

        def __init__(self, readers: Readers, names: dict[str, ModelClasses]) -> None:
            self._readers = readers
            self._names = names

        def visit(self, statements: Iterable[ast.stmt]) -> None:
            for statement in statements:
                self._statement(statement)

        def _statement(self, node: ast.AST) -> None:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                argument_models = {
                    argument.arg: self._readers.models_named(argument.annotation) for argument in arguments
                }
                type(self)(self._readers, {**self._names, **argument_models}).visit(node.body)
            elif isinstance(node, ast.ClassDef):
                type(self)(self._readers, dict(self._names)).visit(node.body)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, ast.For):
                self._bind(node.target, self.models_of(node.iter))
                self.visit([*node.body, *node.orelse])
            else:
                for _, value in ast.iter_fields(node):
                    for child in value if isinstance(value, list) else [value]:
                        if isinstance(child, ast.expr):
                            self.models_of(child)
                        elif isinstance(child, ast.AST):
                            self._statement(child)

        def _assign(self, target: ast.expr, value: ast.expr) -> None:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                for left, right in zip(target.elts, value.elts, strict=True):
                    self._assign(left, right)
            else:
                self._bind(target, self.models_of(value))

        def _bind(self, target: ast.expr, models: ModelClasses) -> None:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    self._names[node.id] = models
                elif isinstance(node, ast.Attribute):
                    self._readers._attributes[node.attr] |= models

        def models_of(self, node: ast.expr) -> ModelClasses:
            """Return the models that the value of an expression may be or contain."""
            if isinstance(node, ast.Name):
                return self._names.get(node.id, NO_MODELS)
            if isinstance(node, ast.Attribute):
                base = self.models_of(node.value)
                return (
                    self._readers.read_attribute(base, node.attr)
                    if base
                    else self._readers._attributes[node.attr]
                )
            if isinstance(node, ast.Call):
                return self._call(node)
            if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
                return self._comprehension(node)
            child_models = [
                self.models_of(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
            ]
            return (
                NO_MODELS if isinstance(node, ast.Compare | ast.Lambda) else frozenset().union(*child_models)
            )

        def _comprehension(
            self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
        ) -> ModelClasses:
            for generator in node.generators:
                self._bind(generator.target, self.models_of(generator.iter))
                for condition in generator.ifs:
                    self.models_of(condition)
            elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            return frozenset().union(*map(self.models_of, elements))

        def _call(self, node: ast.Call) -> ModelClasses:
            arguments = (*node.args, *(keyword.value for keyword in node.keywords))
            argument_models = [self.models_of(argument) for argument in arguments]
            function = node.func
            if isinstance(function, ast.Attribute):
                base = self.models_of(function.value)
                if function.attr in ("model_dump", "model_dump_json"):
                    self._readers.mark_all_fields(base)
                if function.attr in ("model_copy", "values", "items", "get"):
                    return base
                return self._readers._returns[function.attr]
            name = function.id if isinstance(function, ast.Name) else ""
            if name in self._readers._dumping_functions:
                self._readers.mark_all_fields(frozenset().union(*argument_models))
            if name == "getattr" and not isinstance(node.args[1], ast.Constant):
                self._readers.mark_all_fields(argument_models[0])
            if name in self._readers._models:
                return frozenset({self._readers._models[name]})
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
                return frozenset().union(*argument_models)
            return self._readers._returns[name]


def _models_below(model: ModelClass) -> set[ModelClass]:
    models, pending = {model}, [model]
    while pending:
        fields = pending.pop().model_fields.values()
        # Without the models seen so far, since a space may contain spaces.
        new_models = {child for field in fields for child in models_in(field.annotation)} - models
        models |= new_models
        pending += new_models
    return models


def _calls_model_dump_of_argument(function: ast.FunctionDef) -> bool:
    """Return True if a function dumps one of its arguments, and so reads all fields of that model."""
    argument_names = {argument.arg for argument in function.args.args}
    dumped_values = (
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "model_dump"
    )
    return any(isinstance(value, ast.Name) and value.id in argument_names for value in dumped_values)


def _iterate_properties(
    model_trees: Iterable[ast.Module], models: dict[str, ModelClass]
) -> Iterator[tuple[ModelClass, dict[str, ast.FunctionDef]]]:
    for tree in model_trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in models:
                properties = [
                    statement
                    for statement in node.body
                    if isinstance(statement, ast.FunctionDef) and statement.decorator_list
                ]
                yield models[node.name], {function.name: function for function in properties}
