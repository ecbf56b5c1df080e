"""Check an algorithm against the actions of Gymnasium's own environments, which are known without a run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.options import is_custom, schemas
from hindcast.errors import Problem

_INSTANT_ENVIRONMENTS: Final = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")
"""Modules of environments that are created in an instant and need no further package."""


def find_action_problem(resource: OfflineRecording | OfflineTraining) -> Problem | None:
    """Return the problem of an algorithm that cannot learn the environment's actions; None if there is none.

    Only Gymnasium's own environments without wrappers are known here, and only if Gymnasium is installed; a plan or a
    run checks all others.
    """
    section, path = (
        (resource.spec, ("spec",))
        if isinstance(resource, OfflineTraining)
        else (resource.spec.policy.train, ("spec", "policy", "train"))
    )
    environment = resource.spec.environment
    if section is None or environment is None or is_custom(section.algorithm):
        return None
    kind = schemas()[section.algorithm]["x-actions"]
    # `validate` starts quickly: Gymnasium is imported only for algorithms that cannot learn all kinds of actions.
    space = None if kind == "any" else _registered_actions(environment)
    if space is None:
        return None
    from hindcast.episodes.action_kinds import action_problem

    is_recurrent = section.model.recurrent not in (None, "none")
    problem = action_problem(section.algorithm, kind, space, is_recurrent=is_recurrent)
    return None if problem is None else Problem((*path, "algorithm"), f"{problem}.")


def _registered_actions(environment: EnvironmentSpec) -> Any:
    """Return the action space of one of Gymnasium's own environments; None for any other."""
    if environment.wrappers or ":" in environment.id:
        return None
    # The environment is created by the run, which reports what is wrong with its id and arguments.
    with suppress(Exception):
        import gymnasium as gym

        if str(gym.spec(environment.id).entry_point).startswith(_INSTANT_ENVIRONMENTS):
            return gym.make(environment.id, **environment.kwargs).action_space
    return None
