"""Classes, functions and environments given as Python objects: how a resource, which is text, names them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hindcast.errors import SpecError

MakeEnvironment = Callable[[dict[str, Any]], Any]

_registered: dict[str, Any] = {}
"""Gymnasium id -> class or creator that was registered here."""


@dataclass(frozen=True)
class RegisteredEnv:
    """A name given to `register_env` together with its creator, for another process (a Tune trial)."""

    name: str
    creator: MakeEnvironment


def register_env(name: str, creator: MakeEnvironment) -> None:
    """Make an environment known by name, for `.environment(name, env_config=...)` in this process.

    Args:
        name: what `.environment()` takes.
        creator: called with the `env_config` as one dictionary; returns a `gymnasium.Env`.

    Raises:
        SpecError: Gymnasium has an environment of that name.
    """
    import gymnasium as gym

    if name in gym.registry and name not in _registered:
        raise SpecError(f"register_env: Gymnasium has an environment {name!r} already; take another name.")
    gym.registry.pop(name, None)
    gym.register(id=name, entry_point=partial(_create, creator))
    _registered[name] = creator


def environment_id(environment: Any) -> str:
    """`spec.environment.id` of what `.environment()` was given.

    A class that other processes can import is "package.module:Class"; another one is registered with Gymnasium.

    Raises:
        SpecError: it is no environment.
    """
    if isinstance(environment, str):
        return environment
    if isinstance(environment, RegisteredEnv):
        register_env(environment.name, environment.creator)
        return environment.name
    if not isinstance(environment, type):
        raise SpecError(
            f"env is {environment!r}: give an id, a subclass of gymnasium.Env, or a name given to register_env."
        )
    return class_path(environment) or _register_class(environment)


def portable(environment: Any) -> Any:
    """What `.environment()` was given, in a form that means the same in another process."""
    if isinstance(environment, str) and environment in _registered:
        return RegisteredEnv(environment, _registered[environment])
    return environment


def only_here(environment: str) -> bool:
    """Whether an environment's id is known in this process alone."""
    return environment in _registered


def class_path(found: Any) -> str | None:
    """The "package.module:Name" of a class or function, None where another process could not import it."""
    module, name = getattr(found, "__module__", "__main__"), getattr(found, "__qualname__", "")
    if module == "__main__" or not name.isidentifier():
        return None
    same = getattr(importlib.import_module(module), name, None) is found
    return f"{module}:{name}" if same else None


def importable(option: str, value: Any) -> Any:
    """The "package.module:Name" of a class or function given as an option; text and None stay.

    Raises:
        SpecError: it cannot be imported by name.
    """
    if value is None or isinstance(value, str):
        return value
    path = class_path(value)
    if path is None:
        name = getattr(value, "__qualname__", repr(value))
        raise SpecError(
            f"{option} is {name}, which cannot be imported by its name: define it at the top level of a module "
            'of its own and give it, or its "package.module:Name".'
        )
    return path


def _register_class(environment: type) -> str:
    import gymnasium as gym

    name, number = f"hindcast/{environment.__name__}", 2
    while _registered.get(name, environment) is not environment:
        name, number = f"hindcast/{environment.__name__}-{number}", number + 1
    if name not in _registered:
        # A wrapper's class has a property where Gymnasium looks for metadata; a partial has nothing there.
        gym.register(id=name, entry_point=partial(environment))
        _registered[name] = environment
    return name


def _create(creator: MakeEnvironment, **config: Mapping[str, Any]) -> Any:
    return creator(config)
