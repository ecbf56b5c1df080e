"""Names for classes, functions and environments that are passed as Python objects, since a resource is text."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hindcast.errors import SpecError
from hindcast.user_code import import_object, is_registered, register_object

EnvCreator = Callable[[dict[str, Any]], Any]

_creators: dict[str, EnvCreator] = {}
"""Gymnasium id -> the creator registered in this process."""


@dataclass(frozen=True)
class RegisteredEnv:
    """A registered name with its creator, for another process (a Tune trial), which registers it again."""

    name: str
    creator: EnvCreator


def register_env(name: str, creator: EnvCreator) -> None:
    """Register an environment for `.environment(name, env_config=...)`, in this process and those that it starts.

    Args:
        name: the name for `.environment()`.
        creator: called with the `env_config` as one dictionary; returns a `gymnasium.Env`.

    Raises:
        SpecError: Gymnasium has an environment of that name.
    """
    import gymnasium as gym

    if name in gym.registry and name not in _creators:
        raise SpecError(f"register_env: Gymnasium already has an environment {name!r}; choose another name.")
    # Registering a name again replaces it. Without this line Gymnasium would warn about it.
    gym.registry.pop(name, None)
    entry_point = partial(_create, creator)
    gym.register(id=name, entry_point=entry_point)
    register_object(entry_point, name)
    _creators[name] = creator


def to_environment_id(environment: Any) -> str:
    """Convert the argument of `.environment()` to `spec.environment.id`.

    The id of a class is its "package.module:Class". A class that other processes cannot import is registered here: then
    its id is only known to this process and those that it starts. A `RegisteredEnv` is registered with Gymnasium.

    Raises:
        SpecError: the argument is not an environment.
    """
    if isinstance(environment, str):
        return environment
    if isinstance(environment, RegisteredEnv):
        register_env(environment.name, environment.creator)
        return environment.name
    if not isinstance(environment, type):
        raise SpecError(
            f"env is {environment!r}: expected an id, a subclass of gymnasium.Env, or a name registered with "
            "register_env."
        )
    return import_path_of(environment) or register_object(environment)


def to_portable(environment: Any) -> Any:
    """Return the argument of `.environment()`; a name that is registered here is returned with its creator."""
    if isinstance(environment, str) and environment in _creators:
        return RegisteredEnv(environment, _creators[environment])
    return environment


def import_path_of(obj: Any) -> str | None:
    """Return the "package.module:Name" of a class or function, or None if another process cannot import it."""
    module, name = getattr(obj, "__module__", "__main__"), getattr(obj, "__qualname__", "")
    # Another process has another `__main__`, and cannot reach names within functions or classes.
    if module == "__main__" or not name.isidentifier():
        return None
    # A name may have been reassigned, for example by a decorator.
    is_importable = getattr(importlib.import_module(module), name, None) is obj
    return f"{module}:{name}" if is_importable else None


def to_import_path(option: str, value: Any) -> Any:
    """Return the import path of a class, a function or an object; return text and None as they are.

    An object that cannot be imported by name (defined in a script, a notebook or a function) is registered under a path
    in this process and those that it starts.

    Raises:
        SpecError: the value is neither callable nor text.
    """
    if value is None or isinstance(value, str):
        return value
    if not callable(value):
        raise SpecError(f'{option} is {value!r}, expected a class, a function, or its "package.module:Name".')
    return import_path_of(value) or register_object(value)


def refuse_local_objects(resource: Any) -> None:
    """Check that a resource names no object that only this process and its children know.

    Raises:
        SpecError: the resource names such an object.
    """
    for path in _iterate_strings(resource):
        if ":" in path and is_registered(path):
            obj = import_object(path, ("a resource",))
            raise SpecError(
                f"{getattr(obj, '__name__', type(obj).__name__)} cannot be imported by name, and a "
                "resource can only contain names: define it at the top level of an importable module, and pass it or "
                'its "package.module:Name".'
            )


def _iterate_strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _iterate_strings(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _iterate_strings(value)


def _create(creator: EnvCreator, **config: Mapping[str, Any]) -> Any:
    return creator(config)
