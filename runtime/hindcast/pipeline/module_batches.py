"""What connectors and pre-learners in RLlib's form give, as columns of a block: batches of items or of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes import nested
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, is_per_observation, leaves_of, next_leaf, root
from hindcast.episodes.convert import info_to_json
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.pipeline.connector_pieces import stack_items
from hindcast.user_code import Misuse

Array = NDArray[Any]


class MultiAgentBatch:
    """The batches of modules, under RLlib's name: here of one, "default_policy".

    Args:
        policy_batches: `{"default_policy": columns}`.
        env_steps: timesteps in it.
    """

    def __init__(self, policy_batches: Mapping[str, Mapping[str, Any]], env_steps: int) -> None:
        self.policy_batches = dict(policy_batches)
        self.count = env_steps

    def env_steps(self) -> int:
        """Timesteps in it."""
        return self.count

    def __getitem__(self, module_id: str) -> Mapping[str, Any]:
        return self.policy_batches[module_id]

    def __repr__(self) -> str:
        return f"MultiAgentBatch({list(self.policy_batches)}, env_steps={self.count})"


def module_columns(batch: Any) -> dict[str, Array]:
    """The columns of the module in what a pre-learner returned, leaf -> `[rows, ...]`.

    Args:
        batch: a `MultiAgentBatch`, a list of one, `{"batch": either}`, `{"default_policy": columns}`, or RLlib's flat
            `{"default_policy/obs": …}`.

    Raises:
        Misuse: it is none of these, or its columns differ in length.
    """
    if isinstance(batch, Mapping) and "batch" in batch:
        batch = batch["batch"]
    if isinstance(batch, list | tuple) and len(batch) == 1:
        batch = batch[0]
    if isinstance(batch, MultiAgentBatch):
        batch = batch.policy_batches
    if not isinstance(batch, Mapping):
        raise Misuse(f"returned a {type(batch).__name__}; it must return a batch of the module, or episodes.")
    prefix = f"{DEFAULT_MODULE_ID}/"
    flat = {
        name.removeprefix(prefix): value
        for name, value in batch.items()
        if isinstance(name, str) and name.startswith(prefix)
    }
    found = flat or batch.get(DEFAULT_MODULE_ID)
    if not isinstance(found, Mapping) or not found:
        raise Misuse(
            f"returned a batch with {', '.join(map(repr, batch)) or 'nothing'}; expected {DEFAULT_MODULE_ID!r} in it."
        )
    leaves = {leaf: array for name, value in found.items() for leaf, array in _leaves(name, value).items()}
    lengths = {len(array) for array in leaves.values()}
    if len(lengths) > 1:
        said = ", ".join(f"{leaf} {len(array)}" for leaf, array in leaves.items())
        raise Misuse(f"returned columns of different lengths: {said} rows.")
    return leaves


def with_batch(block: Block, batch: Mapping[str, Any], *, next_obs: bool) -> Block:
    """The episodes with the columns of a batch: of each step a row, in the order of the episodes.

    Args:
        block: the episodes.
        batch: `{column: {(id of an episode,): items}}`, or what `module_columns` takes.
        next_obs: whoever changes observations must give `new_obs` too.

    Raises:
        Misuse: a column that cannot be the episodes'.
    """
    if DEFAULT_MODULE_ID in batch or "batch" in batch:
        columns = module_columns(batch)
    else:
        columns = {
            leaf: array
            for name, items in batch.items()
            for leaf, array in _leaves(name, _in_order(name, items, block)).items()
        }
    for leaf, column in columns.items():
        if len(column) != block.num_steps:
            raise Misuse(
                f"returned {len(column)} items in column {leaf!r} of the batch; expected {block.num_steps}, one "
                "for each timestep."
            )
    return _with_rows(block, columns, next_obs)


def rows_to_episodes_of_one_step(columns: Mapping[str, Array], prefix: str) -> Block:
    """Rows of a module's batch as episodes of one step each.

    Args:
        columns: leaf -> `[rows, ...]`, with `obs`, `actions` and, where they matter, `rewards`, `new_obs` and ends.
        prefix: of the ids.

    Raises:
        Misuse: there are no observations or no actions.
    """
    for name in (Columns.OBS, Columns.ACTIONS):
        if not leaves_of(name, columns):
            raise Misuse(f"returned a batch without {name!r}; it has {', '.join(sorted(columns))}.")
    rows = len(next(iter(columns.values())))
    given = dict(columns)
    ends = {
        name: given.pop(name, np.zeros(rows, np.bool_)).astype(np.bool_)
        for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)
    }
    if Columns.REWARDS not in given:
        given[Columns.REWARDS] = np.zeros(rows, np.float32)
    made = {}
    for leaf, column in given.items():
        if root(leaf) == Columns.OBS:
            after = given.get(next_leaf(leaf), column)
            made[leaf] = np.stack([column, after], axis=1).reshape(2 * rows, *column.shape[1:])
        elif root(leaf) != Columns.NEXT_OBS and not is_per_observation(leaf):
            made[leaf] = column
    return Block(
        columns=made,
        length=np.ones(rows, np.int64),
        eps_id=np.array([f"{prefix}-{row:06d}" for row in range(rows)], dtype=object),
        t_started=np.zeros(rows, np.int64),
        terminated=ends[Columns.TERMINATEDS],
        truncated=ends[Columns.TRUNCATEDS],
    )


def _with_rows(block: Block, columns: dict[str, Array], next_obs: bool) -> Block:
    made = dict(block.columns)
    for leaf, column in columns.items():
        if root(leaf) == Columns.OBS:
            after = columns.get(next_leaf(leaf))
            made[leaf] = _observations(block, leaf, column, after, next_obs)
        elif leaf in (Columns.TERMINATEDS, Columns.TRUNCATEDS):
            ended = block.terminated if leaf == Columns.TERMINATEDS else block.truncated
            if not np.array_equal(column.astype(np.bool_), block.step_flags(ended)):
                raise Misuse(f"changed {leaf!r}; where episodes end must stay as recorded.")
        elif not is_per_observation(leaf) and root(leaf) != Columns.NEXT_OBS:
            made[leaf] = made[leaf] if leaf in made and _same(made[leaf], column) else column
    if Columns.OBS in {root(leaf) for leaf in columns}:
        gone = [leaf for leaf in leaves_of(Columns.OBS, made) if leaf not in columns]
        for leaf in gone:
            del made[leaf]
    return block.with_columns(made)


def _observations(block: Block, leaf: str, column: Array, after: Array | None, next_obs: bool) -> Array:
    """`[O, ...]` the observations of the steps, and after an episode's last one the one that it ended with."""
    known = block.columns.get(leaf)
    if known is not None and _same(known[block.obs_row], column):
        return known
    if after is None and next_obs:
        raise Misuse(
            f"changed {leaf!r} in the batch and gave no 'new_obs', which the algorithm needs: change the observations "
            "in the episodes, or give both."
        )
    made = np.empty((block.num_steps + block.num_episodes, *column.shape[1:]), column.dtype)
    last = block.start + block.length - 1
    made[block.obs_start + block.length] = (column if after is None else after)[last]
    made[block.obs_row] = column
    if after is not None and not np.array_equal(
        made[block.obs_row + 1], after, equal_nan=column.dtype.kind == "f"
    ):
        raise Misuse(
            f"gave a 'new_obs' that is not the {leaf!r} of the next step: change both in the same way, or the "
            "observations in the episodes."
        )
    return made


def _same(known: Array, column: Array) -> bool:
    """Whether a column is as it was, but for its precision."""
    if known.shape != column.shape or known.dtype.kind != column.dtype.kind:
        return False
    return np.array_equal(known.astype(column.dtype), column, equal_nan=column.dtype.kind == "f")


def _in_order(name: str, items: Any, block: Block) -> Any:
    if not isinstance(items, Mapping):
        raise Misuse(
            f"gave a column {name!r} of the batch that does not say which episode its items are of "
            "(single_agent_episode)."
        )
    known = set(block.eps_id)
    if strange := [key for key in items if not (isinstance(key, tuple) and key[0] in known)]:
        raise Misuse(
            f"gave a column {name!r} of the batch with items of {strange[0]!r}, which is none of the episodes."
        )
    own = {(eps_id,): items[(eps_id,)] for eps_id in block.eps_id if items.get((eps_id,))}
    return stack_items(own) if own else np.empty(0)


def _leaves(name: str, value: Any) -> dict[str, Array]:
    """A column's leaves as arrays, of text as objects; infos as text."""
    if root(name) == Columns.INFOS:
        texts = [item if isinstance(item, str) else info_to_json(item) for item in value]
        return {name: np.array(texts, dtype=object)}
    return {leaf: _array(leaf, part) for leaf, part in nested.flatten(value, name).items()}


def _array(leaf: str, value: Any) -> Array:
    array = np.asarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind not in "biufO" or (
        array.dtype == object and not all(isinstance(item, str) for item in array.flat)
    ):
        raise Misuse(f"gave a column {leaf!r} that holds neither numbers nor text.")
    return array
