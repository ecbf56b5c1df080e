"""The digest of user code changes exactly if something that the code refers to changes."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from hindcast import code_digest
from hindcast.code_digest import digest_code, ignoring_own_changes

REFERENCES = {
    "global": "S = {value}\nclass C:\n    def f(self): return S",
    "global of a comprehension": "S = {value}\nclass C:\n    def f(self): return [S for _ in range(3)]",
    "global of a helper": "S = {value}\ndef helper(): return S\nclass C:\n    def f(self): return helper()",
    "constant of a helper": "def helper(): return {value}\nclass C:\n    def f(self): return helper()",
    "helper of a helper": "def a(): return {value}\ndef b(): return a()\nclass C:\n    def f(self): return b()",
    "recursive helper": (
        "def a(x): return b(x) or {value}\ndef b(x): return a(x)\nclass C:\n    def f(self): return a(1)"
    ),
    "closure": "def make(s):\n    class C:\n        def f(self): return s\n    return C\nC = make({value})",
    "default": "class C:\n    def f(self, s={value}): return s",
    "keyword default": "class C:\n    def f(self, *, s={value}): return s",
    "class attribute": "class C:\n    s = {value}\n    def f(self): return self.s",
    "base class": "class B:\n    s = {value}\nclass C(B):\n    def f(self): return self.s",
    "class that is called": "class H:\n    s = {value}\nclass C:\n    def f(self): return H().s",
    "metaclass": "class M(type):\n    s = {value}\nclass C(metaclass=M): pass",
    "static method": "class C:\n    @staticmethod\n    def f(): return {value}",
    "class method": "class C:\n    @classmethod\n    def f(cls): return {value}",
    "property": "class C:\n    @property\n    def f(self): return {value}",
    "cached property": (
        "from functools import cached_property\nclass C:\n    @cached_property\n    def f(self): return {value}"
    ),
    "cached function": "from functools import cache\n@cache\ndef f(): return {value}\nclass C:\n    def g(self): f()",
    "partial": (
        "from functools import partial\ndef f(s): return s\np = partial(f, {value})\nclass C:\n    def g(self): p()"
    ),
    "lambda": "f = lambda: {value}\nclass C:\n    def g(self): return f()",
    "bound method": (
        "class H:\n    def __init__(self, s): self.s = s\n    def f(self): return self.s\nf = H({value}).f\n"
        "class C:\n    def g(self): return f()"
    ),
    "decorator": (
        "from functools import wraps\ndef scale(s):\n    def decorate(f):\n        @wraps(f)\n        def g(*a):\n"
        "            return f(*a), s\n        return g\n    return decorate\n"
        "class C:\n    @scale({value})\n    def f(self): pass"
    ),
    "decorator of a library": (
        "import torch\ndef f(s={value}): return s\nclass C:\n    g = torch.no_grad()(f)"
    ),
    "dataclass": (
        "from dataclasses import dataclass, field\n@dataclass\nclass H:\n"
        "    s: object = field(default_factory=lambda: {value})\nclass C:\n    def f(self): return H().s"
    ),
    "function attribute": "def f(): return f.s\nf.s = {value}\nclass C:\n    def g(self): return f()",
    "cyclic value": "S = [{value}]\nS.append(S)\nclass C:\n    def f(self): return S",
    "module": "import user_values as v\nclass C:\n    def f(self): return v.S",
    "name of a module": "from user_values import S\nclass C:\n    def f(self): return S",
    "helper of a module": "from user_values import helper\nclass C:\n    def f(self): return helper()",
    "import in a method": "class C:\n    def f(self):\n        from user_values import S\n        return S",
    "module in a method": "class C:\n    def f(self):\n        import user_values\n        return user_values.S",
    "class of a module": "from user_values import Base\nclass C(Base): pass",
    "function": "S = {value}\ndef C(path): return S",
}
VALUES = {
    "int": ("1", "2"),
    "float": ("0.5", "0.25"),
    "type": ("1", "1.0"),
    "text": ("'a'", "'b'"),
    "bytes": ("b'a'", "b'b'"),
    "list": ("[1, 2]", "[2, 1]"),
    "dict": ("{'a': [1]}", "{'a': [2]}"),
    "set": ("{'a', 'b', 'c'}", "{'a', 'b', 'd'}"),
    "frozenset": ("frozenset('abc')", "frozenset('abd')"),
    "array": ("__import__('numpy').arange(9)", "__import__('numpy').arange(9)[::-1]"),
    "dtype": ("__import__('numpy').zeros(2, 'f4')", "__import__('numpy').zeros(2, 'i4')"),
    "objects": ("__import__('numpy').array([1, 'a'], object)", "__import__('numpy').array([2, 'a'], object)"),
    "tensor": ("__import__('torch').zeros(2)", "__import__('torch').ones(2)"),
    "frame": (
        "__import__('pandas').DataFrame({'a': [1, 2], 'b': ['x', 'y']})",
        "__import__('pandas').DataFrame({'a': [1, 2], 'b': ['x', 'z']})",
    ),
    "generator": ("__import__('numpy').random.default_rng(0)", "__import__('numpy').random.default_rng(1)"),
    "pattern": ("__import__('re').compile('a')", "__import__('re').compile('b')"),
    "path": ("__import__('pathlib').Path('a')", "__import__('pathlib').Path('b')"),
    "space": ("__import__('gymnasium').spaces.Discrete(2)", "__import__('gymnasium').spaces.Discrete(3)"),
    "namespace": ("__import__('types').SimpleNamespace(a=1)", "__import__('types').SimpleNamespace(a=2)"),
    "function": ("len", "max"),
    "library": ("__import__('numpy').mean", "__import__('numpy').median"),
}
"""Kind of value -> two expressions of it."""


def define(reference: str, value: str, folder: Path, *, extra: str = "", name: str = "user_script") -> Any:
    """Run a script that refers to a value, beside the module that it imports; return its class or function `C`."""
    sys.modules.pop("user_values", None)
    values = ModuleType("user_values")
    content = f"S = {value}\nunused = object()\ndef helper(): return S\nclass Base:\n    s = S\n"
    exec(compile(content, str(folder / "user_values.py"), "exec"), vars(values))
    sys.modules["user_values"] = values
    script = extra + REFERENCES[reference].replace("{value}", value)
    module = ModuleType(name)
    sys.modules.setdefault(name, module)  # dataclasses look for it
    scope = vars(module)
    exec(compile(script, "script.py", "exec"), scope)
    return scope["C"]


@pytest.mark.parametrize("reference", REFERENCES)
def test_digest_changes_with_the_value_and_with_nothing_else(reference: str, tmp_path: Path) -> None:
    for kind in VALUES if reference == "global of a helper" else ("int", "set", "array"):
        value, other_value = VALUES[kind]
        first = digest_code(define(reference, value, tmp_path))
        assert first.obstacle is None, kind
        again = define(reference, value, tmp_path, extra="# a comment\nunused = 1\n\n", name="__main__")
        assert digest_code(again) == first, kind
        assert digest_code(define(reference, other_value, tmp_path)) != first, kind
    sys.modules.pop("user_values")


def test_environment_and_streams_of_the_process_do_not_change_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ("__import__('os').environ", "__import__('sys').stdout", "__import__('sys').stderr")
    before = [digest_code(define("global", value, tmp_path)) for value in values]
    assert not any(digest.obstacle for digest in before)
    monkeypatch.setenv("SHELL_LEVEL", "another")
    assert [digest_code(define("global", value, tmp_path)) for value in values] == before


def digest_all(folder: Path) -> dict[str, str]:
    return {
        reference: digest_code(define(reference, VALUES["set"][0], folder)).value
        for reference in REFERENCES
        if "torch" not in REFERENCES[reference]  # slow to import
    }


def test_digest_is_the_same_in_every_process_and_after_calls(tmp_path: Path) -> None:
    code = (
        "import json, pathlib, sys; import test_pipeline_code_digest as t\n"
        "print(json.dumps(t.digest_all(pathlib.Path(sys.argv[1]))))"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    first, second = (json.loads(process.communicate()[0]) for process in processes)
    assert first == second
    cls = define("global of a helper", "{'a', 'b'}", tmp_path)
    digest = digest_code(cls)
    for _ in range(100):  # the interpreter specialises bytecode
        cls().f()
    assert digest_code(cls) == digest
    assert digest_code(cloudpickle.loads(cloudpickle.dumps(cls))) == digest


def test_file_with_the_name_of_a_module_of_python_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "this", raising=False)
    digests = set()
    for number in (1, 2):
        (tmp_path / "this.py").write_text(f"class C:\n    number = {number}{number}\n" + "# " * number)
        code_digest._is_standard.cache_clear()
        digests.add(digest_code(importlib.import_module("this").C).value)
        monkeypatch.delitem(sys.modules, "this")
        importlib.invalidate_caches()
    code_digest._is_standard.cache_clear()
    assert len(digests) == 2


def test_installed_packages_are_known_by_version_but_the_users_own_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    digests = set()
    for version, number in itertools.product((1, 2), (1, 2)):
        for package, code in {
            "ra_library": f"__version__ = '{version}'\ndef helper(): return {number}",
            "ra_package": f"def helper(): return {number}\nclass Own:\n    def f(self): return helper()",
        }.items():
            (folder / package).mkdir(parents=True, exist_ok=True)
            (folder / package / "__init__.py").write_text(code)
            sys.modules.pop(package, None)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec("import ra_library\ndef f(): return ra_library.helper()", scope)
        own_class = importlib.import_module("ra_package").Own
        digests.add((version, number, digest_code(scope["f"]).value, digest_code(own_class).value))
    libraries = {(version, library) for version, _, library, _ in digests}
    packages = {(number, package) for _, number, _, package in digests}
    assert len(libraries) == len({library for _, library in libraries}) == 2
    assert len(packages) == len({package for _, package in packages}) == 2


def test_change_that_code_makes_itself_keeps_the_digest_and_another_does_not(tmp_path: Path) -> None:
    cls = define("global of a helper", "[1, 2]", tmp_path)
    values = cls().f()
    digest = digest_code(cls)
    for _ in range(2):
        with ignoring_own_changes([cls]):
            values.append(3)
        assert digest_code(cls) == digest
    values[0] = 5
    assert digest_code(cls) != digest


@pytest.mark.parametrize(
    ("value", "description"),
    [
        ("__import__('threading').Lock()", "S, a _thread.lock"),
        ("(i for i in 'ab')", "S, a generator"),
        ("__import__('threading').local()", "S, a _thread._local"),
        ("[0] * 1000", "S, more than 1,000 values"),
    ],
)
def test_value_without_a_digest_is_named_and_digests_differ(
    value: str, description: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindcast.code_digest._MAX_VALUES", 1000)
    cls = define("global of a helper", value, tmp_path)
    first, second = digest_code(cls), digest_code(cls)
    assert first.obstacle == second.obstacle == description
    assert first.value != second.value
