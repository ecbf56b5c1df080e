"""Importing and calling the user's own code, with its mistakes as one sentence that names the line."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any, NoReturn, TypeVar

from hindcast.errors import SpecError, UserCodeError, UserError

T = TypeVar("T")

_OURS = f"{Path(__file__).parent}{os.sep}"
_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
_NOT_THE_USERS = (_OURS, *(f"{folder}{os.sep}" for folder in _INSTALLED), "<")


_registered: dict[str, Any] = {}
"""Objects that no other process could import, by the path that names them in this one and in those that it starts."""


class Misuse(Exception):
    """The return value of the user's code cannot be used: `calling` adds whose code and where."""


@contextmanager
def calling(what: str, called: Callable[..., Any] | None = None) -> Iterator[None]:
    """Run the user's code in this block; `what` names it, as the subject of a sentence.

    Args:
        what: see above.
        called: the function or class that is called, which may be Hindcast's own and call the user's.

    Raises:
        UserCodeError: see `raise_as_users`.
    """
    try:
        yield
    except Exception as error:
        raise_user_code_error(error, what, called)


def raise_user_code_error(error: Exception, what: str, called: Callable[..., Any] | None = None) -> NoReturn:
    """Raise what the user's code raised, or gave (`Misuse`), as a sentence; arguments as of `calling`.

    Raises:
        UserCodeError: with the type, the file and line of the user's own code, and the first line of the message; the
            line is that of `called` where the user's code was not yet running, or not any more.
        Exception: the same error, where it is a `UserError` already, or where `called` is Hindcast's and calls nothing
            of the user's.
    """
    if isinstance(error, UserError):
        raise error
    said, written = _of_syntax(error)
    message = said.strip().partition("\n")[0][:500] or "no message"
    own = [*_users_frames(error), *written]
    if not own and called is not None and not is_user_code(called):
        raise error
    defined = None if called is None else definition_location(called)
    if isinstance(error, Misuse):
        raise UserCodeError(f"{what}{f' at {defined}' if defined else ''} {message}") from error
    place = own[-1] if own else defined or _frames(error)[-1]
    raise UserCodeError(f"{what} raised {type(error).__name__} at {place}: {message}") from error


def definition_location(function: Callable[..., Any]) -> str:
    """`file:line` of a function, method or class; its name where it has none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return repr(function)


def register_object(value: Any, path: str | None = None) -> str:
    """The path that names an object of the user's in this process, and in those that `given` was taken to.

    Args:
        value: a class, a function, or an object of theirs.
        path: the one to have; "__main__:Name" if None, with a number where that is another's.
    """
    if path is None:
        parts = re.findall(r"\w+", getattr(value, "__qualname__", type(value).__name__))
        name = parts[-1] if parts[-1].isidentifier() else "Given"
        path, number = f"__main__:{name}", 2
        while not _is_same(_registered.get(path, value), value):
            path, number = f"__main__:{name}_{number}", number + 1
    _registered[path] = value
    return path


def registered_objects() -> dict[str, Any]:
    """All that was given, for `take` in a process that this one starts: it is pickled by value."""
    return dict(_registered)


def restore_objects(objects: Mapping[str, Any]) -> None:
    """Know what was given in the process that started this one."""
    _registered.update(objects)


def is_registered(path: str) -> bool:
    """Whether the path names what was given in this process, or in the one that started it."""
    return path in _registered


def class_import_path(kind: type) -> str:
    """The path of a class: the one that it was given, else "package.module:Name"."""
    return next(
        (path for path, value in _registered.items() if value is kind),
        f"{kind.__module__}:{kind.__qualname__}",
    )


def import_object(path: str, field: str) -> Any:
    """The object at `package.module:Name`, which the user named in `field`.

    Raises:
        SpecError: no such module or name.
        UserCodeError: importing the module raised.
    """
    if path in _registered:
        return _registered[path]
    module_name, _, name = path.partition(":")
    try:
        with calling(f"{field}: importing {module_name!r}"):
            module = importlib.import_module(module_name)
    except UserCodeError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{module_name}.".startswith(f"{missing.name}."):
            raise SpecError(
                f"{field} is {path!r}: there is no module {missing.name!r}; "
                "is it installed, or on PYTHONPATH?"
            ) from error
        raise
    if not hasattr(module, name):
        raise SpecError(f"{field} is {path!r}: the module {module_name!r} has no {name!r}.")
    return getattr(module, name)


def import_subclass(path: str, base: type[T], field: str) -> type[T]:
    """The subclass of `base` at `package.module:Class`, which the user named in `field`.

    Raises:
        SpecError: no such class, or it is not a subclass.
        UserCodeError: importing the module raised.
    """
    found = import_object(path, field)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise SpecError(f"{field} is {path!r}, which is not a subclass of {base.__name__}.")
    return found


def refuse_unused_overrides(kind: type, base: type, instead: Mapping[str, str]) -> None:
    """Refuse a user's class that overrides what RLlib calls, and nothing does here.

    Args:
        kind: the user's.
        base: ours, which it is a subclass of.
        instead: from the name of each such method to what to do.

    Raises:
        SpecError: it has one of them.
    """
    for name, advice in instead.items():
        if getattr(kind, name, None) is not getattr(base, name, None):
            raise SpecError(f"{kind.__name__} overrides {name}, which is never called: {advice}.")


def source_digest(kind: Any) -> str:
    """sha256 (hex) of the user's code in a class or function: the files of it and of its bases, but for Hindcast's."""
    digest = hashlib.sha256()
    for one in getattr(kind, "__mro__", (kind,)):
        if one is kind or one.__module__.partition(".")[0] not in ("builtins", "hindcast"):
            digest.update(_source_of(one))
    return digest.hexdigest()


def _source_of(kind: Any) -> bytes:
    file = getattr(sys.modules.get(getattr(kind, "__module__", "")), "__file__", None)
    if file is not None and Path(file).exists():
        return Path(file).read_bytes()
    try:
        return inspect.getsource(kind).encode()  # of a notebook's cell
    except (OSError, TypeError):
        return str(getattr(kind, "__qualname__", type(kind).__qualname__)).encode()


def _is_same(known: Any, value: Any) -> bool:
    return known is value or (isinstance(value, MethodType) and bool(known == value))


def is_user_code(function: Callable[..., Any]) -> bool:
    """Whether a function is not Hindcast's own."""
    return not definition_location(function).startswith(_OURS)


def _of_syntax(error: Exception) -> tuple[str, list[str]]:
    """What an error says, and, where it is of the syntax of a file, which no frame names: the file and its line."""
    if not isinstance(error, SyntaxError) or not error.filename or error.filename.startswith("<"):
        return str(error), []
    return error.msg, [f"{error.filename}:{error.lineno}"]


def _users_frames(error: Exception) -> list[str]:
    """Those that are neither ours nor an installed package's."""
    return [frame for frame in _frames(error) if not frame.startswith(_NOT_THE_USERS)]


def _frames(error: Exception) -> list[str]:
    """`file:line` of each, the innermost one last."""
    return [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
