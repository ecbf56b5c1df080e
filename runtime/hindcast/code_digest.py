"""Digests of user code that change with everything that the code refers to, and with nothing else."""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.util
import os
import random
import sys
import sysconfig
import types
import uuid
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

_MAX_VALUES: Final = 1_000_000
"""Values that are visited before a digest is given up; the bytes of an array are one value."""
_LIBRARY_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD_FOLDERS: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_digests_before_calls: dict[str, str] = {}
"""Digest of an object after it changed values that it refers to -> the digest before."""
_IS_HEAP_TYPE: Final = 1 << 9
_GLOBAL_LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_DERIVED_ATTRIBUTES: Final = frozenset(
    {
        "__abstractmethods__",
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__qualname__",
        "__slotnames__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)
"""Attributes of a class that follow from others, do not change what code does, or are caches of Python."""
_WEAK_TYPES: Final = (weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
_DESCRIPTORS: Final = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


class CodeDigest(NamedTuple):
    """A digest of code.

    Attributes:
        value: SHA-256 (hex); random if there is an obstacle.
        obstacle: a value that the code uses and that has no digest, such as "LOCK, a _thread.lock"; None without one.
    """

    value: str
    obstacle: str | None = None


def digest_code(obj: Any) -> CodeDigest:
    """Return a digest of a class, a function or another object of the user's, the same in every process.

    It covers bytecode and constants, and the values of everything that the code names: globals, closures, default
    arguments, attributes and bases of classes, functions and classes that it calls, and what modules of the user's
    contain under names that it uses. Of libraries it covers names and versions. It does not cover comments, line
    numbers, and what code reads in other ways (files, environment variables, `globals()["name"]`).
    """
    try:
        value = _Digester(obj).run(obj)
        return CodeDigest(_digests_before_calls.get(value, value))
    except _NoDigest as error:
        return CodeDigest(uuid.uuid4().hex, str(error))
    except RecursionError:
        return CodeDigest(uuid.uuid4().hex, "deeply nested data")


@contextmanager
def ignoring_own_changes(objects: Sequence[Any]) -> Iterator[None]:
    """Keep the digests of user objects in this process if the block, which calls them, changes values they refer to.

    Such as a list that they append to, a counter, or a value that they compute on first use.
    """
    values = [digest_code(obj).value for obj in objects]
    try:
        yield
    finally:
        for obj, value in zip(objects, values, strict=True):
            digest = digest_code(obj)
            if digest.obstacle is None and digest.value != value:
                _digests_before_calls[digest.value] = value


class _NoDigest(Exception):
    """A value has no digest. `name` is the name under which code refers to it."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.name: str | None = None

    def __str__(self) -> str:
        description = super().__str__()
        return description if self.name is None else f"{self.name}, {description}"


class _Digester:
    """Visits everything that code refers to, once.

    Functions and classes refer to each other in cycles. Each is numbered in the order of the first visit, and where it
    is used its number takes part in the digest; its content follows later. Data are digested where they are used.

    Args:
        root: the user's object; its package is not a library, even if it is installed.
    """

    def __init__(self, root: Any) -> None:
        self._root_package = _module_name(root).partition(".")[0]
        self._numbers: dict[int, int] = {}
        self._queue: list[Any] = []  # functions and classes by number; also keeps their ids from being reused
        self._digests: dict[int, bytes] = {}
        self._open_values: dict[int, int] = {}
        self._kept_values: list[Any] = []
        self._open_modules: list[str] = []
        self._num_values = 0
        self._num_cycles = 0

    def run(self, root: Any) -> str:
        digest = hashlib.sha256(self._digest(root))
        position = 0
        while position < len(self._queue):
            node = self._queue[position]
            digest.update(self._class(node) if isinstance(node, type) else self._function(node))
            position += 1
        return digest.hexdigest()

    def _join(self, kind: str, *values: Any) -> bytes:
        """Return the digest of a kind and of values; `bytes` are digests already."""
        digest = hashlib.sha256(kind.encode())
        for value in values:
            digest.update(value if isinstance(value, bytes) else self._digest(value))
        return digest.digest()

    def _named(self, names: Mapping[str, Any]) -> Iterator[Any]:
        """Yield names and digests of their values, sorted by name."""
        for name in sorted(names):
            try:
                yield name
                yield self._digest(names[name])
            except _NoDigest as error:
                error.name = error.name or name
                raise

    def _digest(self, value: Any) -> bytes:
        self._num_values += 1
        if self._num_values > _MAX_VALUES:
            raise _NoDigest(f"more than {_MAX_VALUES:,} values")
        kind = type(value)
        if kind in _ATOMS:
            content = value if kind is bytes else repr(value).encode("utf-8", "surrogatepass")
            return hashlib.sha256(f"{kind.__name__} ".encode() + content).digest()
        if issubclass(kind, type) or kind is types.FunctionType:
            return self._node(value)
        key = id(value)
        if key in self._digests:
            return self._digests[key]
        if key in self._open_values:
            self._num_cycles += 1
            return self._join("cycle", len(self._open_values) - self._open_values[key])
        self._open_values[key] = len(self._open_values)
        num_cycles = self._num_cycles
        try:
            result = self._data(value)
        except (_NoDigest, RecursionError):
            raise
        except Exception as error:  # of the value's own code, such as "cannot pickle '_thread.lock' object"
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            raise _NoDigest(f"a {module}{kind.__qualname__}") from error
        finally:
            del self._open_values[key]
        if self._num_cycles == num_cycles:  # the digest of a part of a cycle depends on where the visit began
            self._digests[key] = result
            self._kept_values.append(value)
        return result

    def _node(self, node: Any) -> bytes:
        """Return the digest of a reference to a class or function."""
        if (library := self._library_of(node)) is not None:
            name = node.__qualname__ if isinstance(node, type) else node.__code__.co_qualname
            # A decorator of a library returns a function of the library, with the user's in its closure.
            if "<locals>" not in name:
                return self._join("library", library, name)
        if id(node) not in self._numbers:
            self._numbers[id(node)] = len(self._queue)
            self._queue.append(node)
        return self._join("node", self._numbers[id(node)])

    def _data(self, value: Any) -> bytes:  # noqa: PLR0911, PLR0912
        kind = type(value)
        if kind in (list, tuple):
            return self._join(kind.__name__, *map(self._digest, value))
        if kind in (dict, types.MappingProxyType):
            return self._join("dict", *(self._digest(part) for item in value.items() for part in item))
        if kind in (set, frozenset):
            # The order of a set differs between processes, and functions are numbered in the order of visits.
            return self._join("set", *sorted(map(self._digest, sorted(value, key=_order))))
        if kind is np.ndarray and not value.dtype.hasobject:
            return self._join("array", repr(value.dtype), list(value.shape), value.tobytes())
        if kind.__module__ == "torch" and isinstance(value, sys.modules["torch"].Tensor):
            return self._tensor(value)
        if kind is types.CodeType:
            return self._code(value)
        if kind is types.MethodType:
            return self._join("method", value.__func__, value.__self__)
        if kind is property:
            return self._join("property", value.fget, value.fset, value.fdel)
        if kind in (staticmethod, classmethod):
            return self._join(kind.__name__, value.__func__)
        if kind is functools.cached_property:
            return self._join("cached_property", value.func)
        if kind is functools._lru_cache_wrapper:
            return self._join("lru_cache", value.__wrapped__)
        if kind is types.ModuleType:
            return self._module(value, None)
        if isinstance(value, _DESCRIPTORS):
            return self._join("descriptor", value.__objclass__, value.__name__)
        if kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            return self._builtin(value)
        if isinstance(value, _WEAK_TYPES):
            return self._join("weak")
        if value is random._inst or value is np.random.mtrand._rand:
            return self._join("global generator")  # seeded before each call of user code
        if any(value is item for item in (os.environ, sys.stdin, sys.stdout, sys.stderr)):
            return self._join("process")  # as if read through `os` and `sys`
        return self._instance(value)

    def _instance(self, value: Any) -> bytes:
        """Return the digest of an object as pickle takes it apart."""
        reducer = copyreg.dispatch_table.get(type(value))
        parts = value.__reduce_ex__(4) if reducer is None else reducer(value)
        if isinstance(parts, str):
            return self._join("global", self._library_of(value) or "", parts)
        function, arguments, *more = parts
        state, items, pairs = [*more, None, None, None][:3]
        if isinstance(state, dict):
            state = tuple(self._named({str(name): part for name, part in state.items()}))
        contents = (list(items or ()), [list(pair) for pair in pairs or ()])
        self._kept_values.append((arguments, state, contents))
        return self._join("instance", function, arguments, state, *contents)

    def _tensor(self, tensor: Any) -> bytes:
        torch = sys.modules["torch"]
        flat = tensor.detach().cpu().contiguous().flatten()
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return self._join("tensor", repr(tensor.dtype), list(tensor.shape), content)

    def _builtin(self, value: Any) -> bytes:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return self._join("builtin", value.__module__ or "", value.__name__)
        return self._join("bound builtin", owner, value.__name__)

    def _module(self, module: types.ModuleType, names: Collection[str] | None) -> bytes:
        """Return the digest of a module: of a library's name, or of the user's values under some names.

        Args:
            module: the module.
            names: names that code uses; None takes all.
        """
        if (library := self._library(module.__name__)) is not None:
            return self._join("library", library, module.__name__)
        if module.__name__ in self._open_modules:
            return self._join("module", module.__name__)
        self._open_modules.append(module.__name__)
        values = {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("__") and (names is None or name in names)
        }
        digests = [
            self._module(value, names) if isinstance(value, types.ModuleType) else self._digest(value)
            for _, value in sorted(values.items())
        ]
        self._open_modules.pop()
        return self._join("module", sorted(values), *digests)

    def _class(self, cls: type) -> bytes:
        attributes = {name: value for name, value in vars(cls).items() if name not in _DERIVED_ATTRIBUTES}
        return self._join("class", cls.__name__, type(cls), cls.__bases__, *self._named(attributes))

    def _function(self, function: types.FunctionType) -> bytes:
        attributes = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
        closure = dict(zip(function.__code__.co_freevars, closure_values(function), strict=True))
        return self._join(
            "function",
            function.__code__,
            function.__defaults__,
            function.__kwdefaults__,
            *self._named(closure),
            *self._named(attributes),
            *([] if self._library_of(function) is not None else self._globals(function)),
        )

    def _globals(self, function: types.FunctionType) -> Iterator[Any]:
        """Yield the global names that a function uses, with digests of their values."""
        scope = function.__globals__
        codes = list(_iterate_codes(function.__code__))
        names = {name for code in codes for name in code.co_names}
        used_names = {
            instruction.argval
            for code in codes
            for instruction in dis.get_instructions(code)
            if instruction.opname in _GLOBAL_LOADS
        }
        values = {name: scope[name] for name in used_names if name in scope and not name.startswith("__")}
        modules = {name: value for name, value in values.items() if isinstance(value, types.ModuleType)}
        yield from self._named({name: value for name, value in values.items() if name not in modules})
        for name in sorted(_imported_names(codes, scope)):
            if self._library(name) is None and (module := _import(name)) is not None:
                modules[name] = module
        for name in sorted(modules):
            yield name
            try:
                yield self._module(modules[name], names)
            except _NoDigest as error:
                error.name = error.name or name
                raise

    def _code(self, code: types.CodeType) -> bytes:
        return self._join(
            "code",
            hashlib.sha256(code.co_code).digest(),
            [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
            [*code.co_names, None, *code.co_varnames, None, *code.co_freevars, None, *code.co_cellvars],
            code.co_exceptiontable,
            *map(self._digest, code.co_consts),
        )

    def _library_of(self, value: Any) -> str | None:
        """Return the name and version of the library that defines a function, a class or an object, else None."""
        return self._library(_module_name(value))

    def _library(self, module: str) -> str | None:
        package = module.partition(".")[0]
        if _is_standard(package):
            return package
        if package == self._root_package or not _is_installed(package):
            return None
        return f"{package} {getattr(sys.modules.get(package), '__version__', '')}"


def _module_name(value: Any) -> str:
    # A decorator changes `__module__` of the function that it returns, but not its globals.
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__", "__main__"))
    name = str(getattr(value, "__module__", None) or "__main__")
    # A class that `exec` defines without `__name__` claims to be in builtins, where no class has this flag.
    is_users = name == "builtins" and isinstance(value, type) and value.__flags__ & _IS_HEAP_TYPE
    return "__main__" if is_users else name


@functools.cache
def _is_standard(package: str) -> bool:
    """Return True if a package is Python's or Hindcast's."""
    if package == "hindcast":
        return True
    # A user's file may have the name of a module of Python, such as test.py.
    paths = _find_paths(package) if package in sys.stdlib_module_names else []
    return any(path in ("built-in", "frozen") or path.startswith(_STANDARD_FOLDERS) for path in paths)


@functools.cache
def _is_installed(package: str) -> bool:
    """Return True if a package is in a folder of installed packages."""
    return any(_LIBRARY_FOLDERS.intersection(Path(path).parts) for path in _find_paths(package))


def _find_paths(package: str) -> list[str]:
    """Return the file and the folders of a package; none if it has no file, as __main__ of a notebook."""
    try:
        spec = getattr(sys.modules.get(package), "__spec__", None) or importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    return [path for path in (spec.origin, *(spec.submodule_search_locations or ())) if path is not None]


def closure_values(function: types.FunctionType) -> list[Any]:
    """Return the values of a closure; an empty cell has the value "empty"."""
    values: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            values.append("empty")
    return values


def _iterate_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iterate_codes(constant)


def _imported_names(codes: Sequence[types.CodeType], scope: Mapping[str, Any]) -> set[str]:
    """Return the names of the modules that code imports when it runs, and of what it imports from them."""
    modules: set[str] = set()
    for code in codes:
        instructions = list(dis.get_instructions(code))
        for index, instruction in enumerate(instructions):
            if instruction.opname == "IMPORT_NAME":
                level, names = instructions[index - 2].argval, instructions[index - 1].argval
                name = f"{'.' * level}{instruction.argval or ''}"
                try:
                    name = importlib.util.resolve_name(name, scope.get("__package__"))
                except ImportError:  # raised again when the code runs
                    continue
                modules.update([name, *(f"{name}.{part}" for part in names or ())])
    return modules


def _import(name: str) -> types.ModuleType | None:
    """Import a module; return None if it is none, or cannot be imported, which fails again when the code runs."""
    try:
        return importlib.import_module(name)
    except Exception:
        return None


def _order(value: Any) -> tuple[str, str]:
    """Return a key that sorts the values of a set in the same order in each process, as far as that matters."""
    kind = type(value)
    text = repr(value) if kind in _ATOMS else getattr(value, "__qualname__", "")
    return kind.__qualname__, str(text)
