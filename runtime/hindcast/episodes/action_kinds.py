"""The kinds of actions that an algorithm can learn, and algorithms for the others."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np

ActionKind = Literal["any", "discrete", "continuous"]
"""`discrete` is one action of a Discrete space, `continuous` one Box of floats with bounds."""


def action_problem(algorithm: str, kind: ActionKind, space: gym.Space[Any]) -> str | None:
    """Describe why an algorithm for this kind cannot learn the actions of a space, and name others; None if it can."""
    is_discrete = isinstance(space, gym.spaces.Discrete)
    if kind == "discrete" and not is_discrete:
        return (
            f"{algorithm} requires one discrete action, a Discrete space, not {space}; use SAC, CQL or TD3BC for "
            "continuous actions, and IQL, MARWIL or BC for other actions"
        )
    if kind != "continuous":
        return None
    if not (isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)):
        discrete_form = {"CQL": "DiscreteCQL or DQN", "SAC": "DiscreteSAC, DQN or DiscreteCQL"}
        valued = discrete_form.get(algorithm, "DQN or DiscreteCQL")
        others = f"{valued}, or IQL, MARWIL or BC" if is_discrete else "IQL, MARWIL or BC"
        return f"{algorithm} requires continuous actions in one float Box, not {space}; use {others}"
    if not space.is_bounded():
        return (
            f"{algorithm} requires bounded actions, but {space} is not bounded on every side; use IQL, MARWIL or BC, "
            "or set bounds (gymnasium's RescaleAction, ClipAction)"
        )
    return None
