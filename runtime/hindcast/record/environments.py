"""Create Gymnasium environments from their description in a resource.

Some environments take ten seconds to start, so one that was created to read its spaces is played in afterwards.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import gymnasium as gym

from hindcast.api.environment import EnvironmentSpec, NamedCall
from hindcast.errors import SpecError
from hindcast.formatting import describe_type
from hindcast.user_code import calling, import_object, is_registered


class Spaces(NamedTuple):
    """Observation and action space of an environment or of a training."""

    observation: gym.Space
    action: gym.Space


class _SharedEnvironments:
    """Spaces of environments, and those environments that were created for their spaces and not played in yet."""

    def __init__(self) -> None:
        self._spaces: dict[str, Spaces] = {}
        self._unplayed_environments: dict[str, gym.Env] = {}

    def spaces(self, spec: EnvironmentSpec) -> Spaces:
        """Return an environment's spaces; create it on the first call and keep it for `take`."""
        key = spec.model_dump_json()
        if key not in self._spaces:
            environment = make_environment(spec)
            self._unplayed_environments[key] = environment
            self._spaces[key] = Spaces(environment.observation_space, environment.action_space)
        return self._spaces[key]

    def take(self, spec: EnvironmentSpec) -> gym.Env | None:
        """Remove and return an environment in which nothing was played; None without such an environment."""
        return self._unplayed_environments.pop(spec.model_dump_json(), None)

    def close_unplayed(self) -> None:
        """Close the environments that were not taken; their spaces stay known."""
        for environment in self._unplayed_environments.values():
            environment.close()
        self._unplayed_environments.clear()


_shared_environments: ContextVar[_SharedEnvironments | None] = ContextVar(
    "_shared_environments", default=None
)
"""Environments of the outermost `keep_environments`."""


@contextmanager
def keep_environments() -> Iterator[_SharedEnvironments]:
    """Keep the environments that are created for their spaces, until they are played in or the block ends.

    Within the block, `environment_spaces` creates an environment at most once, and the first slot that plays in it
    takes it over. A block within another one shares the environments of the outer one.
    """
    # Not for the whole process: in a notebook an id may be registered again with other spaces.
    if (outer_environments := _shared_environments.get()) is not None:
        yield outer_environments
        return
    environments = _SharedEnvironments()
    token = _shared_environments.set(environments)
    try:
        yield environments
    finally:
        _shared_environments.reset(token)
        environments.close_unplayed()


def environment_spaces(spec: EnvironmentSpec) -> Spaces:
    """Return the spaces of an environment, which is created unless an enclosing `keep_environments` knows them.

    Raises:
        SpecError: see `make_environment`.
        UserCodeError: its constructor raised an exception.
    """
    with keep_environments() as environments:
        return environments.spaces(spec)


def take_environment(spec: EnvironmentSpec) -> gym.Env:
    """Return an environment to play in: one that was created for its spaces, else a new one.

    Raises:
        SpecError: see `make_environment`.
        UserCodeError: its constructor raised an exception.
    """
    with keep_environments() as environments:
        environment = environments.take(spec)
    # Not `or`: an environment of the user's may define its own truth value.
    return make_environment(spec) if environment is None else environment


def close_unplayed_environments() -> None:
    """Close the environments that `keep_environments` has kept for slots."""
    with keep_environments() as environments:
        environments.close_unplayed()


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
    for name in ("observation_space", "action_space"):
        if not isinstance(space := getattr(environment, name, None), gym.Space):
            raise SpecError(
                f"{spec.id!r} has {space!r} as {name}, expected a space of gymnasium.",
                field="spec.environment.id",
            )
    return environment


def _make_unwrapped(spec: EnvironmentSpec) -> gym.Env:
    options: dict[str, Any] = dict(spec.kwargs)
    if ":" in spec.id or is_registered(spec.id):
        factory = import_object(spec.id, "spec.environment.id")
        with calling(f"environment {spec.id!r}"):
            environment = factory(**options)
        if not isinstance(environment, gym.Env):
            raise SpecError(
                f"{spec.id!r} returned {describe_type(environment)}, not a gymnasium.Env.",
                field="spec.environment.id",
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
            f"{spec.id!r} requires a package that is not installed: {error}",
            field="spec.environment.id",
        ) from error
    except gym.error.UnregisteredEnv as error:
        raise SpecError(_unknown_id_message(spec.id), field="spec.environment.id") from error
    except gym.error.Error as error:
        raise SpecError(f"{spec.id!r} cannot be created: {error}", field="spec.environment.id") from error
    except Exception as error:
        # A TypeError usually means an unknown keyword argument.
        if isinstance(error, TypeError) and options:
            raise SpecError(
                f"{spec.id!r} rejected the keyword arguments: {error}", field="spec.environment.kwargs"
            ) from error
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
            f"gymnasium.wrappers has no {name!r}; set a custom one as package.module:Class.", field=field
        )
    with calling(f"wrapper {name!r}"):
        return cast(gym.Env, factory(environment, **options))
