"""Gymnasium environments from their description in a resource."""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, cast

import gymnasium as gym

from hindcast.api.environment import EnvironmentSpec, Named
from hindcast.errors import SpecError, UserCodeError


def make_environment(spec: EnvironmentSpec) -> gym.Env:
    """One environment: a Gymnasium id or `package.module:EnvClass`, with its kwargs and wrappers.

    Raises:
        SpecError: no such environment or wrapper, or its packages are not installed.
        UserCodeError: its constructor raised.
    """
    environment = _construct(spec)
    for wrapper in spec.wrappers:
        environment = _wrap(environment, wrapper)
    return environment


def _construct(spec: EnvironmentSpec) -> gym.Env:
    options: dict[str, Any] = dict(spec.kwargs)
    if ":" in spec.id:
        factory = import_object(spec.id, "spec.environment.id")
        environment = _call_user_code(f"environment {spec.id!r}", lambda: factory(**options))
        if not isinstance(environment, gym.Env):
            raise SpecError(
                f"spec.environment.id: {spec.id!r} made a {type(environment).__name__}, not a gymnasium.Env."
            )
        if spec.max_episode_steps is not None:
            environment = gym.wrappers.TimeLimit(environment, spec.max_episode_steps)
        return environment
    if spec.max_episode_steps is not None:
        options["max_episode_steps"] = spec.max_episode_steps
    try:
        return gym.make(spec.id, disable_env_checker=True, **options)
    except gym.error.DependencyNotInstalled as error:
        raise SpecError(f"spec.environment.id: {spec.id!r} needs a package that is not installed: {error}") from error
    except gym.error.UnregisteredEnv as error:
        raise SpecError(f"spec.environment.id: {_unknown(spec.id)}") from error
    except Exception as error:
        raise_user_code(f"environment {spec.id!r}", error)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, gym.registry.keys(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"there is no Gymnasium environment {name!r}{hint} "
        'Give a registered id, or your own class as "package.module:EnvClass".'
    )


def _wrap(environment: gym.Env, wrapper: Named) -> gym.Env:
    name, options = wrapper.name, wrapper.kwargs
    where = "spec.environment.wrappers"
    factory = import_object(name, where) if ":" in name else getattr(gym.wrappers, name, None)
    if factory is None:
        raise SpecError(f"{where}: gymnasium.wrappers has no {name!r}; your own is given as package.module:Class.")
    return cast(gym.Env, _call_user_code(f"wrapper {name!r}", lambda: factory(environment, **options)))


def import_object(path: str, field: str) -> Callable[..., Any]:
    """Import `package.module:Name`, named by the user in `field`.

    Raises:
        SpecError: no such module or name.
        UserCodeError: importing it raised.
    """
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SpecError(f"{field}: cannot import {path!r}: {error}.") from error
    except Exception as error:
        raise_user_code(f"importing {module_name}", error)
    if not hasattr(module, attribute):
        raise SpecError(f"{field}: module {module_name!r} has no {attribute!r}.")
    return cast(Callable[..., Any], getattr(module, attribute))


def raise_user_code(what: str, error: Exception) -> NoReturn:
    """Turn an exception of the user's code into one sentence with its place.

    Raises:
        UserCodeError: always.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"
    reason = str(error).strip().splitlines()
    raise UserCodeError(
        f"{what} raised {type(error).__name__} at {place}: {reason[0][:500] if reason else '(no message)'}"
    ) from error


def _call_user_code(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise_user_code(what, error)

