"""Import and call user code, and turn its exceptions into one sentence that names the file and line."""

from __future__ import annotations

import difflib
import dis
import functools
import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, NoReturn, TypeVar

from hindcast.code_digest import closure_values
from hindcast.errors import FieldPath, SpecError, UserCodeError, UserError

T = TypeVar("T")

_HINDCAST_FOLDER = f"{Path(__file__).parent}{os.sep}"
_INSTALLED_FOLDERS = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
_NON_USER_PREFIXES = (_HINDCAST_FOLDER, *(f"{folder}{os.sep}" for folder in _INSTALLED_FOLDERS), "<")
"""Beginnings of the file names of code that is not the user's; "<" of code without a file, as in <frozen importlib>."""

_METHODS = (FunctionType, staticmethod, classmethod, property)
_registered_objects: dict[str, Any] = {}
"""Path -> user object that child processes cannot import, such as a class of `__main__`; see `register_object`."""


class Misuse(Exception):
    """User code returned something unusable; `calling` adds the name and location of that code.

    The message continues a sentence that begins with both: "returned None; it must return …".
    """


@contextmanager
def calling(subject: str, function: Callable[..., Any] | None = None, field: str = "") -> Iterator[None]:
    """Run user code in the block, and convert its exceptions.

    Args:
        subject: name of the code, the subject of the error's sentence.
        function: function or class that is called; it may be Hindcast's and call user code.
        field: path of the resource's field that names the code, for the error.

    Raises:
        UserCodeError: see `raise_user_code_error`.
    """
    try:
        yield
    except Exception as error:
        raise_user_code_error(error, subject, function, field)


def raise_user_code_error(
    error: Exception, subject: str, function: Callable[..., Any] | None = None, field: str = ""
) -> NoReturn:
    """Raise an exception of user code as a `UserCodeError` of one sentence.

    Args:
        error: the exception; a `Misuse` says what user code returned.
        subject: see `calling`.
        function: see `calling`.
        field: see `calling`.

    Raises:
        UserCodeError: with the exception's type, the user's file and line, and the first line of the message. If no
            frame is the user's, the file and line are those of `function`, as they always are for a `Misuse`.
        Exception: the same error, if it is a `UserError`, or if `function` is Hindcast's and no frame is the user's,
            unless it is a `Misuse`.
    """
    if isinstance(error, UserError):
        raise error
    text, syntax_location = _message_and_syntax_location(error)
    message = text.strip().partition("\n")[0][:500] or "no message"
    user_frames = [*_user_frames(error), *syntax_location]
    is_own_function = function is not None and not is_user_code(function)
    if not user_frames and is_own_function and not isinstance(error, Misuse):
        raise error
    definition = None if function is None or is_own_function else definition_location(function)
    if isinstance(error, Misuse):
        raise UserCodeError(
            f"{subject}{f' at {definition}' if definition else ''} {message}", field
        ) from error
    location = user_frames[-1] if user_frames else definition or _frames(error)[-1]
    raise UserCodeError(f"{subject} raised {type(error).__name__} at {location}: {message}", field) from error


def definition_location(function: Callable[..., Any]) -> str:
    """Return `file:line` of a function, method or class; its repr if it has no source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return repr(function)


def register_object(value: Any, path: str | None = None) -> str:
    """Register a user object; return its path, which this process and those that call `restore_objects` can import.

    Args:
        value: a class, function or other object of the user's.
        path: the path to register; None chooses "__main__:Name", and adds a number if another object has that path.
    """
    if path is None:
        parts = re.findall(r"\w+", getattr(value, "__qualname__", type(value).__name__))
        name = parts[-1] if parts[-1].isidentifier() else "Given"
        path, suffix = f"__main__:{name}", 2
        while not _is_same_object(_registered_objects.get(path, value), value):
            path, suffix = f"__main__:{name}_{suffix}", suffix + 1
    _registered_objects[path] = value
    return path


def registered_objects() -> dict[str, Any]:
    """Return all registered objects, for `restore_objects` in a child process."""
    # cloudpickle sends classes of __main__ by value; a reference could not be imported in the child.
    return dict(_registered_objects)


def restore_objects(objects: Mapping[str, Any]) -> None:
    """Restore objects registered in the parent process."""
    _registered_objects.update(objects)


def is_registered(path: str) -> bool:
    """Return whether the path names an object registered in this process or in its parent."""
    return path in _registered_objects


def class_import_path(cls: type) -> str:
    """Return the path under which a class is registered; if it is not, its "package.module:Name"."""
    return next(
        (path for path, value in _registered_objects.items() if value is cls),
        f"{cls.__module__}:{cls.__qualname__}",
    )


def import_object(path: str, field: str | FieldPath) -> Any:
    """Import the object at `package.module:Name`, which the user named in `field`.

    Raises:
        SpecError: the module or the name does not exist.
        UserCodeError: importing the module raised.
    """
    if path in _registered_objects:
        return _registered_objects[path]
    module_name, _, name = path.partition(":")
    try:
        with calling(f"importing {module_name!r}"):
            module = importlib.import_module(module_name)
    except UserCodeError as error:
        missing = error.__cause__
        # If the user's module imports a missing module, the error is in their code and not in the field.
        if isinstance(missing, ModuleNotFoundError) and f"{module_name}.".startswith(f"{missing.name}."):
            raise SpecError(
                f"is {path!r}: there is no module {missing.name!r}; install it, put it beside the YAML file, or add "
                "its folder to PYTHONPATH.",
                field=field,
            ) from error
        error.locate(field)
        raise
    try:
        return getattr(module, name)
    except AttributeError:
        problem = f"the module {module_name!r} has no {name!r}."
    except ImportError as error:  # of a module that says where a name is, as Hindcast's do
        problem = str(error)
    raise SpecError(f"is {path!r}: {problem}", field=field)


def import_subclass(path: str, base: type[T], field: str | FieldPath) -> type[T]:
    """Import the subclass of `base` at `package.module:Class`, which the user named in `field`.

    Raises:
        SpecError: the class does not exist, or is not a subclass.
        UserCodeError: importing the module raised.
    """
    subclass = import_object(path, field)
    if not (isinstance(subclass, type) and issubclass(subclass, base)):
        raise SpecError(f"is {path!r}, which is not a subclass of {base.__name__}.", field=field)
    return subclass


def refuse_unused_overrides(user_class: type) -> None:
    """Refuse a user class with a method that nothing calls: one that only RLlib calls, or a misspelling.

    Args:
        user_class: the user's class. A base class of Hindcast may have `unsupported_overrides`: name of a method that
            RLlib calls and Hindcast does not -> what to do instead.

    Raises:
        SpecError: the class has such a method that its other methods do not use either, or one with almost the name of
            a base class's that nothing uses.
    """
    remedies: dict[str, str] = {}
    overrides: dict[str, str] = {}
    for base in user_class.__mro__:
        for name, remedy in vars(base).get("unsupported_overrides", {}).items():
            if getattr(user_class, name, None) is not getattr(base, name, None):
                overrides.setdefault(name, remedy)
            remedies.setdefault(name, remedy)
    helpers = _find_helpers(user_class, overrides)
    for name, remedy in overrides.items():
        if name not in helpers:
            raise SpecError(f"{user_class.__name__} overrides {name}, which is never called: {remedy}.")
    for name, method in _find_misspellings(user_class, remedies):
        advice = remedies.get(method, f"rename it to {method}")
        raise SpecError(f"{user_class.__name__} defines {name}, which is never called: {advice}.")


def _find_helpers(user_class: type, overrides: Collection[str]) -> set[str]:
    """Return the overrides that are the user's helpers: the class's called methods read `self.NAME`.

    An override that calls `super()` extends RLlib's method and is no helper.

    Args:
        user_class: a subclass of a class of Hindcast.
        overrides: names of its methods that only RLlib calls.
    """
    definitions: dict[str, list[Any]] = {}
    hindcast_base = next(filter(_is_hindcast_class, user_class.__mro__), user_class)
    for cls in _user_classes(user_class, hindcast_base):
        for name, value in vars(cls).items():
            definitions.setdefault(name, []).append(value)
    helpers: set[str] = set()
    queue = [name for name in definitions if name not in overrides]
    for caller in queue:
        names = {name for value in definitions[caller] for name in _names_read_from_self(value)}
        for name in names & definitions.keys() & set(overrides) - helpers:
            codes = [part for part in _walk(definitions[name]) if isinstance(part, CodeType)]
            if not any("super" in code.co_names for code in codes):
                helpers.add(name)
                queue.append(name)
    return helpers


def _names_read_from_self(method: Any) -> Iterator[str]:
    """Yield the names that a method and the functions nested in it read from its first argument."""
    parts = list(_walk([method]))
    functions = [part.__code__ for part in parts if isinstance(part, FunctionType)]
    first_arguments = {code.co_varnames[0] for code in functions if code.co_argcount}
    for code in parts:
        loaded: Any = None
        for instruction in dis.get_instructions(code) if isinstance(code, CodeType) else ():
            if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and loaded in first_arguments:
                yield instruction.argval
            loaded = instruction.argval
            if isinstance(loaded, tuple) and loaded:  # an instruction that loads two variables
                loaded = loaded[-1]


def _find_misspellings(user_class: type, further_names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the methods of a user class that nothing uses, with the name that each is close to.

    Args:
        user_class: a subclass of a class of Hindcast.
        further_names: names of methods that Hindcast's class does not have.
    """
    hindcast_base = next(filter(_is_hindcast_class, user_class.__mro__), user_class)
    if hindcast_base is user_class:
        return
    methods = {
        name
        for base in user_class.__mro__
        if _is_hindcast_class(base)
        for name, value in vars(base).items()
        if isinstance(value, _METHODS) and not name.startswith("__")
    }
    names_by_folded = {name.replace("_", ""): name for name in (*methods, *further_names)}
    bases = [base for base in user_class.__mro__ if issubclass(base, hindcast_base)]
    user_bases = bases[: bases.index(hindcast_base)]
    user_classes = _user_classes(user_class, hindcast_base)
    for base in user_bases:
        for name, value in vars(base).items():
            if not isinstance(value, _METHODS) or name.startswith("__") or hasattr(hindcast_base, name):
                continue
            matches = difflib.get_close_matches(name.replace("_", ""), names_by_folded, n=1, cutoff=0.88)
            if matches and not _is_used(name, user_classes):
                yield name, names_by_folded[matches[0]]


def _user_classes(user_class: type, hindcast_base: type) -> list[type]:
    return [base for base in user_class.__mro__ if base not in hindcast_base.__mro__]


def _is_hindcast_class(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "hindcast"


def _is_used(name: str, classes: Collection[type]) -> bool:
    """Return True if other attributes of the classes, or their modules apart from definitions, contain the name."""
    for cls in classes:
        functions = [
            value
            for value in vars(sys.modules.get(cls.__module__, object)).values()
            if isinstance(value, FunctionType) and value.__module__ == cls.__module__
        ]
        attributes = [value for key, value in vars(cls).items() if key != name]
        if _contains_use([*attributes, *functions], name, [vars(base).get(name) for base in classes]):
            return True
        try:
            source = inspect.getsource(inspect.getmodule(cls) or cls)
        except (OSError, TypeError):  # a notebook's cell, or code without a file
            continue
        if re.search(rf"(?<!def )\b{name}\b", source):
            return True
    return False


def _contains_use(values: Sequence[Any], name: str, definitions: Sequence[Any]) -> bool:
    """Return True if values contain code that contains the name, or one of its definitions under another name."""
    for value in _walk(values):
        if value == name if isinstance(value, str) else _is_any(value, definitions):
            return True
        if isinstance(value, CodeType) and name in value.co_names:
            return True
    return False


def _walk(values: Sequence[Any]) -> Iterator[Any]:
    """Yield values and all that they refer to; see `_parts`."""
    queue, seen_ids = list(values), set(map(id, values))
    for value in queue:
        yield value
        for part in _parts(value):
            if id(part) not in seen_ids:
                seen_ids.add(id(part))
                queue.append(part)


def _is_any(value: Any, objects: Sequence[Any]) -> bool:
    return value is not None and any(value is item for item in objects)


def _parts(value: Any) -> Iterable[Any]:  # noqa: PLR0911
    """Return what a method refers to: nested code, constants, closures, defaults, and what decorators wrap."""
    if isinstance(value, CodeType):
        return value.co_consts
    if isinstance(value, FunctionType):
        return (value.__code__, value.__defaults__, value.__kwdefaults__, *closure_values(value))
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, functools.cached_property | functools.partial | functools.partialmethod):
        return (value.func,)
    if isinstance(value, functools._lru_cache_wrapper):
        return (value.__wrapped__,)
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _is_same_object(existing: Any, value: Any) -> bool:
    """Return True for the same object, or for equal bound methods: each access to a method creates a new object."""
    return existing is value or (isinstance(value, MethodType) and bool(existing == value))


def is_user_code(function: Callable[..., Any]) -> bool:
    """Return whether a function is defined outside Hindcast."""
    return not definition_location(function).startswith(_HINDCAST_FOLDER)


def _message_and_syntax_location(error: Exception) -> tuple[str, list[str]]:
    """Return an error's text and `[file:line]` of a syntax error in a file, which no frame names; else `[]`."""
    if not isinstance(error, SyntaxError) or not error.filename or error.filename.startswith("<"):
        return str(error), []
    return error.msg, [f"{error.filename}:{error.lineno}"]


def _user_frames(error: Exception) -> list[str]:
    """Return the frames outside Hindcast and installed packages, innermost last."""
    return [frame for frame in _frames(error) if not frame.startswith(_NON_USER_PREFIXES)]


def _frames(error: Exception) -> list[str]:
    """Return `file:line` of each frame of the traceback, innermost last."""
    return [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
