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

SHARED_PACKAGES = ("learn", "run")
"""Packages that read options of any algorithm."""


def find_unread_options(algorithm_class: type[Algorithm], options_read_elsewhere: set[str]) -> set[str]:
    """Return the Python names of the algorithm's options that nothing reads."""
    read_options = {
        name for method in iterate_called_methods(algorithm_class) for name in iterate_read_options(method)
    }
    return algorithm_class.Options.model_fields.keys() - read_options - options_read_elsewhere


def iterate_called_methods(algorithm_class: type[Algorithm]) -> Iterator[ast.FunctionDef]:
    """Iterate over the methods that may run: overriding ones, and overridden ones that `super()` reaches."""
    is_final: dict[str, bool] = {}
    for base in algorithm_class.__mro__[:-1]:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and not is_final.get(method.name, False):
                yield method
                is_final[method.name] = "super()." not in ast.unparse(method)


def iterate_read_options(tree: ast.AST) -> Iterator[str]:
    """Iterate over the attributes read from a name `options`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            if (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")) == "options":
                yield node.attr


@pytest.fixture(scope="module")
def options_read_elsewhere() -> set[str]:
    """Names of all options that `SHARED_PACKAGES` read."""
    root = Path(hindcast.__file__).parent
    files = (path for package in SHARED_PACKAGES for path in root.glob(f"{package}/**/*.py"))
    return {name for path in files for name in iterate_read_options(ast.parse(path.read_text()))}


@pytest.mark.parametrize("name", REGISTRY)
def test_every_option_is_read_by_its_algorithm(name: str, options_read_elsewhere: set[str]) -> None:
    assert find_unread_options(REGISTRY[name], options_read_elsewhere) == set()


def test_shared_options_are_read_by_the_runtime(options_read_elsewhere: set[str]) -> None:
    assert {"grad_clip", "grad_clip_by", "train_batch_size_per_learner"} <= options_read_elsewhere


class OptionsWithTemperature(BCOptions):
    temperature: float = 1.0


class WithUnreadOption(BC):
    """Has an option that it does not read."""

    Options = OptionsWithTemperature


class OverridesReaders(IQL):
    """Overrides the methods in which its base class reads options."""

    def needs(self):
        return super().needs()

    def after_update(self, nets, step):
        pass


def test_option_without_a_reader_is_detected(options_read_elsewhere: set[str]) -> None:
    assert find_unread_options(WithUnreadOption, options_read_elsewhere) == {"temperature"}
    assert find_unread_options(OverridesReaders, options_read_elsewhere) == {"tau"}
