"""Names of the columns of experience (RLlib's `Columns`), and of their leaves.

A composite space has one column per leaf, named by its path: `obs/camera`, `actions/0`.
"""

from collections.abc import Iterable
from typing import Final

SEPARATOR: Final = "/"
MASK_LEAF: Final = "obs/action_mask"
"""Leaf of observations: 0 where a discrete action is forbidden."""
DETAILS: Final = "episode_details"
"""Column in files for the data of each episode in addition to its steps. A block has no such column."""
EMPTY_INFO: Final = "{}"  # an info dict without entries, as the JSON text of the infos column


class Columns:
    """Names of columns. The values are stable, because files contain them."""

    OBS = "obs"
    NEXT_OBS = "new_obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    TERMINATED = TERMINATEDS  # RLlib's guide to offline data uses this name
    TRUNCATED = TRUNCATEDS
    INFOS = "infos"
    EPS_ID = "eps_id"
    AGENT_ID = "agent_id"
    MODULE_ID = "module_id"
    T = "t"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTION_LOGP = "action_logp"
    VF_PREDS = "vf_preds"
    STATE_IN = "state_in"
    STATE_OUT = "state_out"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    LOSS_MASK = "loss_mask"
    SEQ_LENS = "seq_lens"
    DISCOUNTS = "discounts"
    TIME = "time_of_row"  # only while rows become episodes: the time of a row, from the column that `input.time` names
    DELTA_T = "delta_t"  # duration of a step in units of time, at least 0; without it, each step takes 1
    N_STEP = "n_step"
    NEXT_ACTIONS = "new_actions"
    # `FOLLOWED` and the columns of returns are Hindcast's own; see `Needs`.
    FOLLOWED = "followed"  # whether the step of `new_actions` is in the same episode or fragment
    RETURNS_TO_GO = "returns_to_go"
    MC_RETURNS = "mc_returns"
    PREV_REWARDS = "prev_rewards"
    WEIGHTS = "weights"


SCALAR_COLUMNS: Final = (Columns.REWARDS, Columns.ACTION_LOGP, Columns.DELTA_T)
"""Stored columns that must have one number for each timestep: readers squeeze `[R, 1]` and refuse other shapes."""


def root(leaf: str) -> str:
    """Return the column of a leaf: `obs/camera` -> `obs`."""
    return leaf.split(SEPARATOR, 1)[0]


def is_per_observation(leaf: str) -> bool:
    """Return whether a leaf has one row more than the episode has steps (observations and infos)."""
    return root(leaf) in (Columns.OBS, Columns.INFOS)


def next_leaf(leaf: str) -> str:
    """Return the leaf of the next observation: `obs/camera` -> `new_obs/camera`."""
    return Columns.NEXT_OBS + leaf.removeprefix(Columns.OBS)


def obs_leaf(leaf: str) -> str:
    """Return the leaf of the observation: the inverse of `next_leaf`; other leaves unchanged."""
    if root(leaf) != Columns.NEXT_OBS:
        return leaf
    return Columns.OBS + leaf.removeprefix(Columns.NEXT_OBS)


def leaves_of(column: str, names: Iterable[str]) -> list[str]:
    """Return the leaves among `names` that belong to `column`, in order."""
    return [name for name in names if root(name) == column]
