"""Convert the batches that connectors and pre-learners in RLlib's form return to columns of a block."""

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
from hindcast.formatting import describe_type
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.rllib.connectors.library import join_items, stack_items
from hindcast.user_code import Misuse

Array = NDArray[Any]


class MultiAgentBatch:
    """RLlib's batch of several modules; here of the only one, "default_policy".

    Args:
        policy_batches: `{"default_policy": columns}`.
        env_steps: number of timesteps.
    """

    def __init__(self, policy_batches: Mapping[str, Mapping[str, Any]], env_steps: int) -> None:
        self.policy_batches = dict(policy_batches)
        self.count = env_steps

    def env_steps(self) -> int:
        """Return the number of timesteps."""
        return self.count

    def __getitem__(self, module_id: str) -> Mapping[str, Any]:
        return self.policy_batches[module_id]

    def __repr__(self) -> str:
        return f"MultiAgentBatch({list(self.policy_batches)}, env_steps={self.count})"


def module_columns(batch: Any) -> dict[str, Array]:
    """Return the module's columns, leaf -> `[rows, ...]`, of a batch that a pre-learner or a connector returned.

    Args:
        batch: a `MultiAgentBatch`, a list of one, `{"batch": either}`, `{"default_policy": columns}`, or RLlib's flat
            `{"default_policy/obs": …}`.

    Raises:
        Misuse: the batch has another form, or its columns differ in length.
    """
    if isinstance(batch, Mapping) and "batch" in batch:
        batch = batch["batch"]
    if isinstance(batch, list | tuple) and len(batch) == 1:
        batch = batch[0]
    if isinstance(batch, MultiAgentBatch):
        batch = batch.policy_batches
    if not isinstance(batch, Mapping):
        raise Misuse(f"returned {describe_type(batch)}; it must return a batch of the module, or episodes.")
    prefix = f"{DEFAULT_MODULE_ID}/"
    flat_columns = {
        name.removeprefix(prefix): value
        for name, value in batch.items()
        if isinstance(name, str) and name.startswith(prefix)
    }
    columns = flat_columns or batch.get(DEFAULT_MODULE_ID)
    if not isinstance(columns, Mapping) or not columns:
        raise Misuse(
            f"returned a batch with {', '.join(map(repr, batch)) or 'nothing'}; it must contain {DEFAULT_MODULE_ID!r}."
        )
    leaves = {
        leaf: array for name, value in columns.items() for leaf, array in _leaf_arrays(name, value).items()
    }
    lengths = {len(array) for array in leaves.values()}
    if len(lengths) > 1:
        lengths_text = ", ".join(f"{leaf} {len(array)}" for leaf, array in leaves.items())
        raise Misuse(f"returned columns of different lengths: {lengths_text} rows.")
    return leaves


def with_batch(block: Block, batch: Mapping[str, Any], *, needs_next_obs: bool) -> Block:
    """Return the episodes with the columns of a batch, which has a row for each step, in order.

    Args:
        block: the episodes.
        batch: `{column: {(id of an episode,): items}}`, or a batch that `module_columns` accepts.
        needs_next_obs: whether a batch that changes observations must contain `new_obs` too.

    Raises:
        Misuse: a column does not match the episodes.
    """
    if DEFAULT_MODULE_ID in batch or "batch" in batch:
        if single_items := batch.keys() - {DEFAULT_MODULE_ID, "batch"}:
            raise Misuse(
                f"added {', '.join(map(repr, sorted(single_items)))} beside {DEFAULT_MODULE_ID!r}: prepend a connector "
                f"that adds items of episodes; after BatchIndividualItems add to batch[{DEFAULT_MODULE_ID!r}]."
            )
        columns = module_columns(batch)
    else:
        columns = {
            leaf: array
            for name, items in batch.items()
            for leaf, array in _leaf_arrays(name, _order_by_episode(name, items, block)).items()
        }
    for leaf, column in columns.items():
        if len(column) != block.num_steps:
            raise Misuse(
                f"returned {len(column)} items in column {leaf!r} of the batch; expected {block.num_steps}, one "
                "for each timestep."
            )
    return _replace_columns(block, columns, needs_next_obs)


def rows_to_episodes_of_one_step(columns: Mapping[str, Array], prefix: str) -> Block:
    """Convert the rows of a module's batch to episodes of one step each.

    Args:
        columns: leaf -> `[rows, ...]`, with `obs`, `actions` and optionally `rewards` (else 0), `new_obs` (else `obs`),
            `terminateds` and `truncateds` (else False).
        prefix: prefix of the episodes' ids.

    Raises:
        Misuse: there are no observations or no actions.
    """
    for name in (Columns.OBS, Columns.ACTIONS):
        if not leaves_of(name, columns):
            raise Misuse(f"returned a batch without {name!r}; it has {', '.join(sorted(columns))}.")
    num_rows = len(next(iter(columns.values())))
    inputs = dict(columns)
    ends = {
        name: inputs.pop(name, np.zeros(num_rows, np.bool_)).astype(np.bool_)
        for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)
    }
    if Columns.REWARDS not in inputs:
        inputs[Columns.REWARDS] = np.zeros(num_rows, np.float32)
    outputs = {}
    for leaf, column in inputs.items():
        if root(leaf) == Columns.OBS:
            next_obs = inputs.get(next_leaf(leaf), column)
            outputs[leaf] = np.stack([column, next_obs], axis=1).reshape(2 * num_rows, *column.shape[1:])
        elif root(leaf) != Columns.NEXT_OBS and not is_per_observation(leaf):
            outputs[leaf] = column
    return Block(
        columns=outputs,
        length=np.ones(num_rows, np.int64),
        eps_id=np.array([f"{prefix}-{row:06d}" for row in range(num_rows)], dtype=object),
        t_started=np.zeros(num_rows, np.int64),
        terminated=ends[Columns.TERMINATEDS],
        truncated=ends[Columns.TRUNCATEDS],
    )


def _replace_columns(block: Block, columns: dict[str, Array], needs_next_obs: bool) -> Block:
    """Return the block with the columns; see `with_batch`. Leaves of `obs` that the batch lacks are dropped."""
    new_columns = dict(block.columns)
    for leaf, column in columns.items():
        if root(leaf) == Columns.OBS:
            next_obs_column = columns.get(next_leaf(leaf))
            new_columns[leaf] = _build_observations(block, leaf, column, next_obs_column, needs_next_obs)
        elif leaf in (Columns.TERMINATEDS, Columns.TRUNCATEDS):
            is_set = block.terminated if leaf == Columns.TERMINATEDS else block.truncated
            if not np.array_equal(column.astype(np.bool_), block.step_flags(is_set)):
                raise Misuse(f"changed {leaf!r}; the ends of episodes must stay as recorded.")
        elif not is_per_observation(leaf) and root(leaf) != Columns.NEXT_OBS:
            # A connector that converts to float32 must not reduce the precision of columns that it does not change.
            new_columns[leaf] = (
                new_columns[leaf]
                if leaf in new_columns and _is_unchanged(new_columns[leaf], column)
                else column
            )
    if Columns.OBS in {root(leaf) for leaf in columns}:
        stale_leaves = [leaf for leaf in leaves_of(Columns.OBS, new_columns) if leaf not in columns]
        for leaf in stale_leaves:
            del new_columns[leaf]
    return block.with_columns(new_columns)


def _build_observations(
    block: Block, leaf: str, column: Array, next_obs_column: Array | None, needs_next_obs: bool
) -> Array:
    """Return the observations of each episode, its final observation included: `[steps + episodes, ...]`.

    Args:
        block: the episodes.
        leaf: leaf of the observations.
        column: the new observations of all steps, `[steps, ...]`.
        next_obs_column: the new next observations, `[steps, ...]`; None repeats the last observation of each
            episode as its final observation.
        needs_next_obs: whether None is refused.

    Raises:
        Misuse: the next observations are required and missing, or differ from the observations of the next steps.
    """
    original = block.columns.get(leaf)
    if original is not None and _is_unchanged(original[block.obs_row], column):
        return original
    if next_obs_column is None and needs_next_obs:
        raise Misuse(
            f"changed {leaf!r} in the batch and returned no 'new_obs', which the algorithm needs: change the "
            "observations in the episodes, or return both."
        )
    observations = np.empty((block.num_steps + block.num_episodes, *column.shape[1:]), column.dtype)
    last_step = block.start + block.length - 1
    observations[block.obs_start + block.length] = (column if next_obs_column is None else next_obs_column)[
        last_step
    ]
    observations[block.obs_row] = column
    if next_obs_column is not None and not np.array_equal(
        observations[block.obs_row + 1], next_obs_column, equal_nan=column.dtype.kind == "f"
    ):
        raise Misuse(
            f"returned a 'new_obs' that differs from the {leaf!r} of the next step: change both in the same way, or "
            "change the observations in the episodes."
        )
    return observations


def _is_unchanged(original: Array, column: Array) -> bool:
    """Return True if a column equals the original after conversion to the dtype of the column."""
    if original.shape != column.shape or original.dtype.kind != column.dtype.kind:
        return False
    return np.array_equal(original.astype(column.dtype), column, equal_nan=column.dtype.kind == "f")


def _order_by_episode(name: str, items: Any, block: Block) -> Any:
    """Return a column's items as arrays, in the order of the block's episodes."""
    if not isinstance(items, Mapping):
        raise Misuse(
            f"returned a column {name!r} of the batch without the episodes of its items "
            "(single_agent_episode)."
        )
    episode_ids = set(block.eps_id)
    if unknown_keys := [key for key in items if not (isinstance(key, tuple) and key[0] in episode_ids)]:
        raise Misuse(
            f"returned a column {name!r} of the batch with items of {unknown_keys[0]!r}, an unknown episode."
        )
    items_by_episode = {(eps_id,): items[(eps_id,)] for eps_id in block.eps_id if items.get((eps_id,))}
    if not items_by_episode:
        return np.empty(0)
    return join_items(items_by_episode) if name == Columns.INFOS else stack_items(items_by_episode)


def _leaf_arrays(name: str, value: Any) -> dict[str, Array]:
    """Return a column's leaves as arrays, leaf -> `[items, ...]`: text as objects, infos as JSON text."""
    if root(name) == Columns.INFOS:
        texts = [item if isinstance(item, str) else info_to_json(item) for item in value]
        return {name: np.array(texts, dtype=object)}
    return {leaf: _to_array(leaf, leaf_value) for leaf, leaf_value in nested.flatten(value, name).items()}


def _to_array(leaf: str, value: Any) -> Array:
    array = np.asarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind not in "biufO" or (
        array.dtype == object and not all(isinstance(item, str) for item in array.flat)
    ):
        raise Misuse(f"returned a column {leaf!r} that contains neither numbers nor text.")
    return array
