"""Names for classes, functions and environments given as Python objects, since a resource is text."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hindcast.errors import SpecError
from hindcast.user_code import import_object, is_registered, register_object

MakeEnvironment = Callable[[dict[str, Any]], Any]

_registered: dict[str, MakeEnvironment] = {}
"""Gymnasium id -> creator that was registered here."""


@dataclass(frozen=True)
class RegisteredEnv:
    """A name given to `register_env` together with its creator, for another process (a Tune trial)."""

    name: str
    creator: MakeEnvironment


def register_env(name: str, creator: MakeEnvironment) -> None:
    """Make an environment known by name, for `.environment(name, env_config=...)`, here and in processes started here.

    Args:
        name: what `.environment()` takes.
        creator: called with the `env_config` as one dictionary; returns a `gymnasium.Env`.

    Raises:
        SpecError: Gymnasium has an environment of that name.
    """
    import gymnasium as gym

    if name in gym.registry and name not in _registered:
        raise SpecError(f"register_env: Gymnasium already has an environment {name!r}; choose another name.")
    gym.registry.pop(name, None)
    made = partial(_create, creator)
    gym.register(id=name, entry_point=made)
    register_object(made, name)
    _registered[name] = creator


def environment_id(environment: Any) -> str:
    """`spec.environment.id` of what `.environment()` was given.

    A class that any process can import is "package.module:Class"; another one is given to those that this one starts.

    Raises:
        SpecError: it is not an environment.
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
    """What `.environment()` was given, in a form that means the same in another process."""
    if isinstance(environment, str) and environment in _registered:
        return RegisteredEnv(environment, _registered[environment])
    return environment


def import_path_of(found: Any) -> str | None:
    """The "package.module:Name" of a class or function, None if another process could not import it."""
    module, name = getattr(found, "__module__", "__main__"), getattr(found, "__qualname__", "")
    if module == "__main__" or not name.isidentifier():
        return None
    same = getattr(importlib.import_module(module), name, None) is found
    return f"{module}:{name}" if same else None


def to_import_path(option: str, value: Any) -> Any:
    """The path of a class, a function or an object given as an option; text and None stay.

    One that cannot be imported by its name (of a script, a notebook, a function) is known by a path in this process and
    in those that it starts.

    Raises:
        SpecError: it can be none.
    """
    if value is None or isinstance(value, str):
        return value
    if not callable(value):
        raise SpecError(f'{option} is {value!r}, expected a class, a function, or its "package.module:Name".')
    return import_path_of(value) or register_object(value)


def refuse_local_objects(resource: Any) -> None:
    """Refuse a resource that names an object known to this process only.

    Raises:
        SpecError: it does.
    """
    for path in _texts(resource):
        if ":" in path and is_registered(path):
            found = import_object(path, "a resource")
            raise SpecError(
                f"{getattr(found, '__name__', type(found).__name__)} cannot be imported by name, and a "
                "resource can only hold names: define it at the top level of an importable module and pass it, or its "
                '"package.module:Name".'
            )


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _texts(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _texts(value)


def _create(creator: MakeEnvironment, **config: Mapping[str, Any]) -> Any:
    return creator(config)
