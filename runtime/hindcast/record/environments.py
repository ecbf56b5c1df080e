"""Creation of Gymnasium environments from their description in a resource."""

from __future__ import annotations

import difflib
from typing import Any, cast

import gymnasium as gym

from hindcast.api.environment import EnvironmentSpec, NamedCall
from hindcast.errors import SpecError
from hindcast.user_code import calling, import_object, is_registered


def make_environment(spec: EnvironmentSpec) -> gym.Env:
    """Create an environment from a Gymnasium id or `package.module:EnvClass`, with its kwargs and wrappers.

    The first wrapper is the innermost one.

    Raises:
        SpecError: there is no such environment or wrapper, or its packages are not installed.
        UserCodeError: its constructor raised an exception.
    """
    environment = _make_unwrapped(spec)
    for wrapper in spec.wrappers:
        environment = _wrap(environment, wrapper)
    return environment


def _make_unwrapped(spec: EnvironmentSpec) -> gym.Env:
    options: dict[str, Any] = dict(spec.kwargs)
    if ":" in spec.id or is_registered(spec.id):
        factory = import_object(spec.id, "spec.environment.id")
        with calling(f"environment {spec.id!r}"):
            environment = factory(**options)
        if not isinstance(environment, gym.Env):
            raise SpecError(
                f"spec.environment.id: {spec.id!r} returned a {type(environment).__name__}, not a gymnasium.Env."
            )
        if spec.max_episode_steps is not None:
            environment = gym.wrappers.TimeLimit(environment, spec.max_episode_steps)
        return environment
    if spec.max_episode_steps is not None:
        options["max_episode_steps"] = spec.max_episode_steps
    try:
        # `Slots` checks observations; Gymnasium's checker would be one more wrapper around each step.
        return gym.make(spec.id, disable_env_checker=True, **options)
    except gym.error.DependencyNotInstalled as error:
        raise SpecError(
            f"spec.environment.id: {spec.id!r} needs a package that is not installed: {error}"
        ) from error
    except gym.error.UnregisteredEnv as error:
        raise SpecError(f"spec.environment.id: {_unknown_id_message(spec.id)}") from error
    except gym.error.Error as error:
        raise SpecError(f"spec.environment.id: {spec.id!r} cannot be created: {error}") from error
    except Exception as error:
        # A TypeError usually means an unknown keyword argument.
        if isinstance(error, TypeError) and options:
            raise SpecError(f"spec.environment.kwargs: {spec.id!r} rejected them: {error}") from error
        with calling(f"environment {spec.id!r}"):  # names the line of the user's code
            raise


def _unknown_id_message(env_id: str) -> str:
    matches = difflib.get_close_matches(env_id, gym.registry.keys(), n=1)
    hint = f"; did you mean {matches[0]!r}?" if matches else "."
    return (
        f"there is no Gymnasium environment {env_id!r}{hint} "
        'Use a registered id, or a custom class as "package.module:EnvClass".'
    )


def _wrap(environment: gym.Env, wrapper: NamedCall) -> gym.Env:
    name, options = wrapper.name, wrapper.kwargs
    field = "spec.environment.wrappers"
    factory = import_object(name, field) if ":" in name else getattr(gym.wrappers, name, None)
    if factory is None:
        raise SpecError(
            f"{field}: gymnasium.wrappers has no {name!r}; set a custom one as package.module:Class."
        )
    with calling(f"wrapper {name!r}"):
        return cast(gym.Env, factory(environment, **options))
