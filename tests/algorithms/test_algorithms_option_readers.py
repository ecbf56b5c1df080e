"""Every option of an algorithm is read, by its own methods or by the code that trains all algorithms."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import hindcast
from hindcast.algorithms import REGISTRY
from hindcast.algorithms.bc import BC, BCOptions
from hindcast.algorithms.iql import IQL
from hindcast.learn.algorithm import Algorithm

ELSEWHERE = ("learn", "run")
"""Packages that read options of any algorithm."""


def unread(kind: type[Algorithm], elsewhere: set[str]) -> set[str]:
    """Return the Python names of options that nothing reads."""
    read_options = {name for method in methods_of(kind) for name in options_in(method)}
    return kind.Options.model_fields.keys() - read_options - elsewhere


def methods_of(kind: type[Algorithm]) -> Iterator[ast.FunctionDef]:
    """Iterate over the methods that its objects call: overriding ones, and overridden ones that `super()` reaches."""
    is_over: dict[str, bool] = {}
    for base in kind.__mro__[:-1]:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and not is_over.get(method.name, False):
                yield method
                is_over[method.name] = "super()." not in ast.unparse(method)


def options_in(tree: ast.AST) -> Iterator[str]:
    """Iterate over the attributes read from a name `options`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            of = node.value
            if (of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")) == "options":
                yield node.attr


@pytest.fixture(scope="module")
def elsewhere() -> set[str]:
    root = Path(hindcast.__file__).parent
    files = (path for package in ELSEWHERE for path in root.glob(f"{package}/**/*.py"))
    return {name for path in files for name in options_in(ast.parse(path.read_text()))}


@pytest.mark.parametrize("name", REGISTRY)
def test_every_option_is_read_by_its_algorithm(name: str, elsewhere: set[str]) -> None:
    assert unread(REGISTRY[name], elsewhere) == set()


def test_shared_options_are_read_by_the_runtime(elsewhere: set[str]) -> None:
    assert {"grad_clip", "grad_clip_by", "train_batch_size_per_learner"} <= elsewhere


class ForgetfulOptions(BCOptions):
    temperature: float = 1.0


class Forgetful(BC):
    """Has an option that it does not read."""

    Options = ForgetfulOptions


class Fixed(IQL):
    """Does not read options that its base class reads."""

    def needs(self):
        return super().needs()

    def after_update(self, nets, step):
        pass


def test_option_without_a_reader_is_detected(elsewhere: set[str]) -> None:
    assert unread(Forgetful, elsewhere) == {"temperature"}
    assert unread(Fixed, elsewhere) == {"tau"}
