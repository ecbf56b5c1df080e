"""The kinds of actions that an algorithm can learn, and algorithms for the others."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import gymnasium as gym
import numpy as np

ActionKind = Literal["any", "discrete", "continuous"]
"""`discrete` is one action of a Discrete or MultiDiscrete space, `continuous` one Box of floats with bounds."""
MAX_JOINT_ACTIONS: Final = 4096
"""Maximum number of combinations of a MultiDiscrete action's elements; the network has an output for each."""


def action_problem(
    algorithm: str, kind: ActionKind, space: gym.Space[Any], *, is_recurrent: bool = False
) -> str | None:
    """Describe why an algorithm for this kind cannot learn the actions of a space, and name others; None if it can.

    The others can also train a recurrent policy if this one is recurrent.
    """
    is_discrete = isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
    if kind == "discrete" and not is_discrete:
        names = "IQL, MARWIL or BC"
        if action_problem(algorithm, "continuous", space) is None:
            continuous_names = "SAC or CQL" if is_recurrent else "SAC, CQL or TD3BC"
            names = f"{continuous_names} for continuous actions, and {names} for other actions"
        return f"{algorithm} requires one discrete action, a Discrete or MultiDiscrete space, not {space}; use {names}"
    if kind == "discrete" and (problem := joint_actions_problem(space)):
        return (
            f"{algorithm} computes a value for each combination of an action's elements, but {space} has {problem}; "
            "use IQL, MARWIL or BC with independent elements (distribution Auto), or fewer values per element"
        )
    if kind != "continuous":
        return None
    if not (isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)):
        q_algorithms = {"CQL": "DiscreteCQL or DQN"}
        if not is_recurrent:
            q_algorithms["SAC"] = "DiscreteSAC, DQN or DiscreteCQL"
        q_algorithm = q_algorithms.get(algorithm, "DQN or DiscreteCQL")
        alternatives = f"{q_algorithm}, or IQL, MARWIL or BC" if is_discrete else "IQL, MARWIL or BC"
        return f"{algorithm} requires continuous actions in one float Box, not {space}; use {alternatives}"
    if not space.is_bounded():
        return (
            f"{algorithm} requires bounded actions, but {space} is not bounded on every side; use IQL, MARWIL or BC, "
            "or set bounds (gymnasium's RescaleAction, ClipAction)"
        )
    return None


def num_joint_actions(space: gym.spaces.Discrete | gym.spaces.MultiDiscrete) -> int:
    """Return the number of actions; for a MultiDiscrete space, the number of combinations of its elements."""
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    return math.prod(int(size) for size in space.nvec.ravel())


def joint_actions_problem(space: gym.Space[Any]) -> str | None:
    """Describe the number of combinations if a MultiDiscrete space has too many; otherwise None."""
    if not isinstance(space, gym.spaces.MultiDiscrete) or num_joint_actions(space) <= MAX_JOINT_ACTIONS:
        return None
    return f"{num_joint_actions(space):,} combinations, more than {MAX_JOINT_ACTIONS:,}"


def mask_sizes(shape: tuple[int, ...], space: gym.Space[Any]) -> tuple[int, ...] | None:
    """Return the number of values of each choice that an action mask of a shape masks, one choice after the other.

    Args:
        shape: `[n]` for a Discrete space. For a MultiDiscrete space the sum of its elements' numbers of values, a
            choice for each element; or the number of combinations, one choice of a combination. If both numbers are
            equal, the mask is of elements. The combinations of two elements may also have the shape `[n, m]`.
        space: the action space.

    Returns:
        The sizes; None if the shape fits no mask of these actions.
    """
    if isinstance(space, gym.spaces.Discrete):
        return (int(space.n),) if shape == (space.n,) else None
    if not isinstance(space, gym.spaces.MultiDiscrete):
        return None
    sizes = tuple(int(size) for size in space.nvec.ravel())
    if shape == (sum(sizes),):
        return sizes
    num_combinations = math.prod(sizes)
    is_of_combinations = shape == (num_combinations,) or (len(sizes) == 2 and shape == sizes)
    return (num_combinations,) if is_of_combinations else None
