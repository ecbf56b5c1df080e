"""`StepLayout`: the columns, under RLlib's names and `t`, of every layout with one row per timestep."""

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

# Columns of older recordings, in which a single flag ends an episode.
DONE_NAMES: Final = ("dones", "done")
# Names under which pandas writes an unnamed index to Parquet and to CSV, and reads it from CSV.
_PANDAS_INDICES: Final = (*(f"__index_level_{level}__" for level in range(4)), "", "Unnamed: 0")
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
        *_PANDAS_INDICES,
        "agent_index",
        "unroll_id",
        "type",
    }
)
_STANDARD_COLUMNS: Final = frozenset({Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS})
_T_LEAF: Final = Leaf(np.dtype(np.int64))
_FLAG_LEAF: Final = Leaf(np.dtype(np.bool_))


class StepLayout:
    """The columns that data of one spec have at each timestep, apart from `eps_id` and `infos`.

    Args:
        spec: spec of the blocks.
        layout: name of the layout, for messages.

    Attributes:
        leaves: leaf name -> leaf, in the order of the columns: `t`, `obs`, `actions`, `rewards`,
            `new_obs`, `terminateds`, `truncateds`, outputs of the model.

    Raises:
        DataError: a model output has the name of a column of the layout.
    """

    def __init__(self, spec: DataSpec, layout: str) -> None:
        roots = dict.fromkeys(root(leaf) for leaf in spec.leaves)
        conflicts = [name for name in roots if name in NON_OUTPUT_COLUMNS - _STANDARD_COLUMNS]
        if conflicts:
            raise DataError(
                f"a model output is named {conflicts[0]!r}, which this layout uses for another column: "
                "rename it"
            )
        self._spec, self._layout = spec, layout
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

    def arrays(self, block: Block) -> dict[str, NDArray[Any]]:
        """Return leaf name -> `[S, *shape]`, for all `leaves`, in the same order.

        Raises:
            DataError: a column that the spec does not have, lacks, or has with another dtype or shape; an
                episode without timesteps, whose observation would be lost.
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
                f"episode {eps_id} has no timesteps, so it has no row in {self._layout}: leave it out, or "
                "choose the format Episodes"
            )
        for name, leaf in self._spec.leaves.items():
            if leaf.kind != "json" or name in block.columns:
                self._spec.require_column(block, name)


def actor_ids(block: Block, name: str) -> pa.Array:
    """Return `[S]` ids of the agents or modules that acted, text or integers, from the details; null if unknown.

    Args:
        name: `agent_id` or `module_id`.
    """
    if block.details is None:
        return pa.nulls(block.num_steps)
    ids = [from_text(text).get(name) for text in block.details]
    if any(isinstance(actor, str) for actor in ids):
        ids = [None if actor is None else str(actor) for actor in ids]
    return pa.array(ids).take(pa.array(block.episode_of_step))


def as_numbers(column: NDArray[Any], leaf: Leaf) -> NDArray[Any]:
    """Return the column in its spec's dtype, C-contiguous; complex numbers become pairs of floats."""
    assert leaf.dtype is not None
    values = np.ascontiguousarray(column, dtype=leaf.dtype)
    if leaf.dtype.kind != "c":
        return values
    return values.view(f"<f{leaf.dtype.itemsize // 2}").reshape(*values.shape, 2)


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nest leaves into dicts: `{"obs/camera": x}` becomes `{"obs": {"camera": x}}`."""
    tree: dict[str, Any] = {}
    for name, value in leaves.items():
        *parents, last = name.split(SEPARATOR)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree
