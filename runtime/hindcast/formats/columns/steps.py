"""`StepLayout`: the columns of all layouts with one row per timestep, which have RLlib's names (and `t`)."""

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

# Names of the flag in older recordings, which have only one flag for the end of an episode.
DONE_NAMES: Final = ("dones", "done")
# Names of an unnamed index that pandas writes to Parquet and CSV, and the name that pandas gives it on reading CSV.
_PANDAS_INDEX_NAMES: Final = (*(f"__index_level_{level}__" for level in range(4)), "", "Unnamed: 0")
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
        *_PANDAS_INDEX_NAMES,
        "agent_index",
        "unroll_id",
        "type",
    }
)
_STANDARD_COLUMNS: Final = frozenset({Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS})
_T_LEAF: Final = Leaf(np.dtype(np.int64))
_FLAG_LEAF: Final = Leaf(np.dtype(np.bool_))


class StepLayout:
    """The columns with a value at each timestep, except `eps_id` and `infos`, of data with one spec.

    Args:
        spec: spec of the blocks.
        layout_name: name of the layout, for messages.

    Attributes:
        leaves: leaf name -> leaf, in the order of the columns: `t`, `obs`, `actions`, `rewards`,
            `new_obs`, `terminateds`, `truncateds`, outputs of the model.

    Raises:
        DataError: a model output has the name of a column of the layout.
    """

    def __init__(self, spec: DataSpec, layout_name: str) -> None:
        roots = dict.fromkeys(root(leaf) for leaf in spec.leaves)
        conflicts = [name for name in roots if name in NON_OUTPUT_COLUMNS - _STANDARD_COLUMNS]
        if conflicts:
            raise DataError(
                f"a model output is named {conflicts[0]!r}, which this layout uses for another column: "
                "rename it"
            )
        self._spec, self._layout_name = spec, layout_name
        outputs = [name for name in roots if name not in _STANDARD_COLUMNS]
        obs = self._column_leaves(Columns.OBS)
        self.leaves: dict[str, Leaf] = {
            Columns.T: _T_LEAF,
            **obs,
            **self._column_leaves(Columns.ACTIONS),
            **self._column_leaves(Columns.REWARDS),
            **{next_leaf(name): leaf for name, leaf in obs.items()},
            Columns.TERMINATEDS: _FLAG_LEAF,
            Columns.TRUNCATEDS: _FLAG_LEAF,
            **{name: leaf for output in outputs for name, leaf in self._column_leaves(output).items()},
        }

    def make_arrays(self, block: Block) -> dict[str, NDArray[Any]]:
        """Make the columns of a block: leaf name -> `[S, *shape]`, for all `leaves` in their order.

        Raises:
            DataError: the block has other columns than the spec, or a column with another dtype or shape; an
                episode has no timesteps, so that its observation would be lost.
        """
        self._check_block(block)
        step_arrays: dict[str, NDArray[Any]] = {
            Columns.T: block.t,
            Columns.TERMINATEDS: block.step_flags(block.terminated),
            Columns.TRUNCATEDS: block.step_flags(block.truncated),
        }
        for name in self._column_leaves(Columns.OBS):
            step_arrays[name] = block.columns[name][block.obs_row]
            step_arrays[next_leaf(name)] = block.columns[name][block.obs_row + 1]
        return {
            name: step_arrays[name] if name in step_arrays else block.columns[name] for name in self.leaves
        }

    def _column_leaves(self, column: str) -> dict[str, Leaf]:
        return {name: self._spec.leaves[name] for name in leaves_of(column, self._spec.leaves)}

    def _check_block(self, block: Block) -> None:
        self._spec.check_names(block)
        if (block.length == 0).any():
            eps_id = block.eps_id[int(np.argmin(block.length))]
            raise DataError(
                f"episode {eps_id} has no timesteps, so it has no row in {self._layout_name}: leave it out, or "
                "choose the format Episodes"
            )
        for name, leaf in self._spec.leaves.items():
            if leaf.kind != "json" or name in block.columns:
                self._spec.require_column(block, name)


def read_agent_ids(block: Block, name: str) -> pa.Array:
    """Read the id of the agent or module that acted at each step from the details.

    Args:
        block: episodes.
        name: `agent_id` or `module_id`.

    Returns:
        `[S]` texts if at least one id is text, otherwise integers; null where the id is unknown.
    """
    if block.details is None:
        return pa.nulls(block.num_steps)
    ids = [from_text(text).get(name) for text in block.details]
    if any(isinstance(agent_id, str) for agent_id in ids):
        ids = [None if agent_id is None else str(agent_id) for agent_id in ids]
    return pa.array(ids).take(pa.array(block.episode_of_step))


def to_real_numbers(column: NDArray[Any], leaf: Leaf) -> NDArray[Any]:
    """Return the column in its leaf's dtype, C-contiguous; complex numbers become pairs of floats, `[..., 2]`."""
    assert leaf.dtype is not None
    values = np.ascontiguousarray(column, dtype=leaf.dtype)
    if leaf.dtype.kind != "c":
        return values
    return values.view(f"<f{leaf.dtype.itemsize // 2}").reshape(*values.shape, 2)


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nest leaves into dicts: `{"obs/camera": x}` becomes `{"obs": {"camera": x}}`."""
    tree: dict[str, Any] = {}
    for name, value in leaves.items():
        *parents, leaf_name = name.split(SEPARATOR)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf_name] = value
    return tree
