"""Blocks as timesteps: the columns, by RLlib's names and `t`, of every layout that has one row for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import SEPARATOR, Columns, leaves_of, next_leaf, root
from hindcast.episodes.details import from_text
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec, Leaf

# Of older recordings, where one flag says that an episode is over.
DONE_NAMES: Final = ("dones", "done")
# What pandas writes of an index without a name, to Parquet and to CSV, and reads from the latter.
_INDICES: Final = (*(f"__index_level_{level}__" for level in range(4)), "", "Unnamed: 0")
# Columns of RLlib's files that are not model outputs.
NON_OUTPUT_COLUMNS: Final = frozenset(
    {
        Columns.EPS_ID,
        Columns.AGENT_ID,
        Columns.MODULE_ID,
        Columns.T,
        Columns.OBS,
        Columns.ACTIONS,
        Columns.REWARDS,
        Columns.NEXT_OBS,
        Columns.TERMINATEDS,
        Columns.TRUNCATEDS,
        Columns.INFOS,
        *DONE_NAMES,
        *_INDICES,
        "agent_index",
        "unroll_id",
        "type",
    }
)
_OWN: Final = frozenset({Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS})
_T: Final = Leaf(np.dtype(np.int64))
_FLAG: Final = Leaf(np.dtype(np.bool_))


class StepLayout:
    """What data of one spec have at each timestep, apart from `eps_id` and `infos`.

    Args:
        spec: what the blocks hold.
        layout: its name, for error sentences.

    Attributes:
        leaves: leaf name -> what it holds, in the order of the columns: `t`, `obs`, `actions`, `rewards`,
            `new_obs`, `terminateds`, `truncateds`, outputs of the model.

    Raises:
        DataError: a model output that has the name of one of the layout's own columns.
    """

    def __init__(self, spec: DataSpec, layout: str) -> None:
        roots = dict.fromkeys(root(leaf) for leaf in spec.leaves)
        taken = [name for name in roots if name in NON_OUTPUT_COLUMNS - _OWN]
        if taken:
            raise DataError(
                f"a model output is named {taken[0]!r}, which this layout uses for another column"
            )
        self._spec, self._layout = spec, layout
        outputs = [name for name in roots if name not in _OWN]
        obs = self._column_leaves(Columns.OBS)
        self.leaves: dict[str, Leaf] = {
            Columns.T: _T,
            **obs,
            **self._column_leaves(Columns.ACTIONS),
            **self._column_leaves(Columns.REWARDS),
            **{next_leaf(name): leaf for name, leaf in obs.items()},
            Columns.TERMINATEDS: _FLAG,
            Columns.TRUNCATEDS: _FLAG,
            **{name: leaf for output in outputs for name, leaf in self._column_leaves(output).items()},
        }

    def arrays(self, block: Block) -> dict[str, NDArray[Any]]:
        """Leaf name -> `[S, *shape]`, for all `leaves`, in the same order.

        Raises:
            DataError: a column that the spec does not have, lacks, or has with another dtype or shape; an
                episode without timesteps, whose observation would be lost.
        """
        self._check_block(block)
        own: dict[str, NDArray[Any]] = {
            Columns.T: block.t,
            Columns.TERMINATEDS: block.step_flags(block.terminated),
            Columns.TRUNCATEDS: block.step_flags(block.truncated),
        }
        for name in self._column_leaves(Columns.OBS):
            own[name] = block.columns[name][block.obs_row]
            own[next_leaf(name)] = block.columns[name][block.obs_row + 1]
        return {name: own[name] if name in own else block.columns[name] for name in self.leaves}

    def _column_leaves(self, column: str) -> dict[str, Leaf]:
        return {name: self._spec.leaves[name] for name in leaves_of(column, self._spec.leaves)}

    def _check_block(self, block: Block) -> None:
        self._spec.check_names(block)
        if (block.length == 0).any():
            eps_id = block.eps_id[int(np.argmin(block.length))]
            raise DataError(
                f"episode {eps_id} has no timesteps, so it has no row in {self._layout}: leave it out, or write "
                "Episodes"
            )
        for name, leaf in self._spec.leaves.items():
            if leaf.kind != "json" or name in block.columns:
                self._spec.require_column(block, name)


def actor_ids(block: Block, name: str) -> pa.Array:
    """`[S]` the agents or modules that acted, as the episodes' details say, text or whole numbers; null if they do not.

    Args:
        name: `agent_id` or `module_id`.
    """
    if block.details is None:
        return pa.nulls(block.num_steps)
    found = [from_text(text).get(name) for text in block.details]
    if any(isinstance(actor, str) for actor in found):
        found = [None if actor is None else str(actor) for actor in found]
    return pa.array(found).take(pa.array(block.episode_of_step))


def as_numbers(column: NDArray[Any], leaf: Leaf) -> NDArray[Any]:
    """The column in its spec's dtype, C-contiguous; complex numbers as pairs of floats."""
    assert leaf.dtype is not None
    values = np.ascontiguousarray(column, dtype=leaf.dtype)
    if leaf.dtype.kind != "c":
        return values
    return values.view(f"<f{leaf.dtype.itemsize // 2}").reshape(*values.shape, 2)


def nest(named: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves as nested dicts: `{"obs/camera": x}` as `{"obs": {"camera": x}}`."""
    tree: dict[str, Any] = {}
    for name, value in named.items():
        *parents, last = name.split(SEPARATOR)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree
