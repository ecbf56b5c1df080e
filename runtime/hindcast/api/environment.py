"""The environment, its wrappers, and the range of its actions."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from hindcast.api.base import FreeForm, Model, Positive, Text


class NamedCall(Model):
    """A name with keyword arguments: a wrapper, a connector or an initialiser."""

    name: Text
    """A name that Hindcast knows, or "package.module:Name"."""
    kwargs: FreeForm = {}
    """Keyword arguments for it."""


def _name_to_call(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


NameOrCall = Annotated[
    NamedCall,
    BeforeValidator(_name_to_call),
    WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True}),
]


class EnvironmentSpec(Model):
    """A Gymnasium environment."""

    id: Text
    """A Gymnasium id (`CartPole-v1`) or "package.module:EnvClass"."""
    kwargs: FreeForm = {}
    """Keyword arguments of the environment."""
    wrappers: Annotated[list[NameOrCall], Field(max_length=32)] = []
    """Gymnasium wrappers, innermost first: a name in `gymnasium.wrappers`, "package.module:Name", or
    `{name, kwargs}`."""
    normalize_actions: bool = True
    """The policy acts in [-1, 1]; its actions are scaled to the bounds of a bounded action space."""
    clip_actions: bool = False
    """Clip actions to the bounds of the action space before they reach the environment."""
    max_episode_steps: Positive | None = None
    """Truncate episodes after this number of timesteps. Default: the environment's own limit."""
